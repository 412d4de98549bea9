#pragma once

#include "file_descriptor.hpp"
#include "headway/comm/endpoint.hpp"
#include "headway/comm/group.hpp"
#include "rendezvous/contact.hpp"
#include "rendezvous/handshake.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace headway::comm {

/// Connects to one peer without ever blocking, over the first of its addresses that answers (RFC 8305, "happy
/// eyeballs").
///
/// The addresses are tried in their order. The next one joins in as soon as the one before it fails, or after 250 ms
/// without a connection, or after 2 s if there is a connection but no word. All attempts go on side by side up to the
/// point where the peer has said who it is. Then one of them alone goes on and proves that this rank knows the secret:
/// the peer takes a proof for a connection, and may not get two. Local sockets and loopback addresses are not
/// overtaken: ranks of one host must not meet over a longer way because one of them is busy.
class Connector {
 public:
  enum class Outcome {
    kGoing,
    kConnected,
    kAgain,        ///< Not now; the same addresses may work later.
    kElsewhere,    ///< The rank is not behind any of its addresses: its process has ended, most likely.
    kRefused,      ///< The rank does not accept us: the secrets differ.
    kDisagreement  ///< The rank differs in a field of the agreement.
  };

  /// Registers its sockets with `epoll`, as `label`. `sources`: addresses to connect from; empty: any.
  Connector(Handshake::Self self, int peer, Contact const& contact, std::vector<SocketAddress> addresses,
            std::vector<SocketAddress> sources, int epoll, std::uint64_t label);
  Connector(Connector&&) = default;
  Connector& operator=(Connector&&) = default;
  ~Connector();

  /// Moves all attempts on, as far as they go now.
  Outcome advance();
  /// When to call advance() at the latest.
  [[nodiscard]] Deadline next_timer() const;

  /// Once connected.
  [[nodiscard]] FileDescriptor take_socket() { return std::move(socket_); }
  [[nodiscard]] SocketAddress const& address() const { return connected_to_; }
  /// Errors so far, by address; the reason of a refusal or disagreement.
  [[nodiscard]] std::string error() const;

 private:
  struct Attempt {
    SocketAddress address;
    FileDescriptor socket;
    Handshake handshake;
    Deadline deadline;
    std::vector<std::byte> output{};
    bool is_connected = false;
    bool wants_to_write = false;
  };

  void start_next();
  [[nodiscard]] bool may_start_next() const;
  /// @returns kGoing as long as the attempt goes on.
  Outcome move_on(Attempt& attempt, std::string& error);
  Outcome finish_connect(Attempt& attempt, std::string& error);
  Outcome shake_hands(Attempt& attempt, std::string& error);
  void note_connected(Attempt& attempt);
  bool flush(Attempt& attempt);
  void watch(Attempt& attempt, bool wants_to_write);
  void forget(std::size_t index, std::string const& error);
  [[nodiscard]] SocketAddress source_for(SocketAddress const& address) const;

  Handshake::Self self_;
  int peer_;
  InstanceId instance_;
  std::vector<SocketAddress> addresses_;
  std::vector<SocketAddress> sources_;
  int epoll_;
  std::uint64_t label_;

  std::size_t num_started_ = 0;
  std::optional<Deadline> next_start_;
  std::vector<Attempt> attempts_;  ///< Going on.
  std::optional<int> proving_;     ///< Socket of the attempt that alone may send its proof.
  bool may_work_later_ = false;    ///< An attempt ended with kAgain.
  FileDescriptor socket_;
  SocketAddress connected_to_;
  std::string error_;
};

/// Addresses of a peer, best first: a local socket on the same host, then TCP as far as `engine` allows it. Among
/// the addresses of another host the one that worked last in this process comes first.
[[nodiscard]] std::vector<SocketAddress> candidate_addresses(Contact const& peer, std::string const& own_host,
                                                             Engine engine);
/// Notes that `address` of `host` works, for candidate_addresses(). Thread-safe.
void remember_good_address(std::string const& host, SocketAddress const& address);

}  // namespace headway::comm
