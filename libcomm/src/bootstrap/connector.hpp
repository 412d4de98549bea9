// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bootstrap/handshake.hpp"
#include "bootstrap/rank_address.hpp"
#include "headway/base/file_descriptor.hpp"
#include "headway/comm/endpoint.hpp"
#include "headway/comm/group_options.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace headway::comm {

/// Connects to one peer without blocking, over the first of its addresses that answers (RFC 8305, "happy eyeballs").
///
/// Addresses are tried in order. The next attempt starts when the previous one fails, after 250 ms without a
/// connection, or after 2 s with a connection but no answer. Attempts run in parallel until the peer has identified
/// itself. Then a single one continues and proves that this rank knows the secret: the peer takes a proof for a
/// connection and must not get two.
/// An attempt to a local socket or loopback address is never overtaken: ranks of one host must not connect over a
/// longer path because one of them is busy.
class Connector {
 public:
  enum class Outcome {
    kGoing,
    kConnected,
    kAgain,        ///< No connection now; the same addresses may work later.
    kElsewhere,    ///< No address leads to the rank. Most likely its process has ended.
    kRefused,      ///< The rank rejects this one: the secrets differ.
    kDisagreement  ///< The rank differs in a field of the agreement.
  };

  /// Registers its sockets with `epoll` under `label`. `sources`: local addresses to connect from; empty means any.
  Connector(Handshake::Self self, int peer, RankAddress const& rank_address, std::vector<SocketAddress> addresses,
            std::vector<SocketAddress> sources, int epoll, std::uint64_t label);
  Connector(Connector&&) = default;
  Connector& operator=(Connector&&) = default;
  ~Connector();

  /// Advances all attempts as far as possible without blocking.
  Outcome advance();
  /// Latest time for the next call of advance().
  [[nodiscard]] Deadline next_timer() const;

  /// Results, valid after kConnected.
  [[nodiscard]] base::FileDescriptor take_socket() { return std::move(socket_); }
  [[nodiscard]] SocketAddress const& address() const { return connected_to_; }
  /// Errors so far, by address; or the reason of a refusal or disagreement.
  [[nodiscard]] std::string error() const;

 private:
  /// A connection attempt to one address.
  struct Attempt {
    SocketAddress address;
    base::FileDescriptor socket;
    Handshake handshake;
    Deadline deadline;
    std::vector<std::byte> output{};
    bool is_connected = false;
    bool wants_to_write = false;
  };

  /// Starts an attempt with the next address.
  void start_next();
  [[nodiscard]] bool may_start_next() const;
  /// Advances one attempt. @returns kGoing while it is unfinished.
  Outcome move_on(Attempt& attempt, std::string& error);
  Outcome finish_connect(Attempt& attempt, std::string& error);
  Outcome shake_hands(Attempt& attempt, std::string& error);
  /// Postpones the next attempt: the peer is there, and most likely busy.
  void on_connected(Attempt& attempt);
  /// Sends pending output. @returns whether the connection still accepts output.
  bool flush(Attempt& attempt);
  void watch(Attempt& attempt, bool wants_to_write);
  /// Removes an attempt that has failed, and adds `error` to error_.
  void forget(std::size_t index, std::string const& error);
  /// Local address to bind to for a connection to `address`; empty if any will do.
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
  std::vector<Attempt> attempts_;  ///< Unfinished attempts.
  std::optional<int> proving_;     ///< Socket of the only attempt that may send its proof.
  bool may_work_later_ = false;    ///< True if an attempt ended with kAgain.
  base::FileDescriptor socket_;
  SocketAddress connected_to_;
  std::string error_;
};

/// Addresses of a peer, best first: a local socket if it is on this host, then the TCP addresses that `transport`
/// allows. For another host, the address that worked last in this process comes first.
[[nodiscard]] std::vector<SocketAddress> candidate_addresses(RankAddress const& peer, std::string const& own_host,
                                                             Transport transport);
/// Records that `address` of `host` works, for candidate_addresses(). Thread-safe.
void remember_good_address(std::string const& host, SocketAddress const& address);

}  // namespace headway::comm
