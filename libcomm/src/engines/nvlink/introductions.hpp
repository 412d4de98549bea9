#pragma once

#include "engines/nvlink/mailbox.hpp"
#include "headway/comm/endpoint.hpp"

#include <cuda.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace headway::comm::nvlink {

/// What a rank tells a peer before they share memory. `set` numbers what is shared, alike on all ranks.
struct Hello {
  int set = 0;
  std::array<char, 96> host{};     ///< host_identity().
  std::array<char, 64> mailbox{};  ///< Where the peer is to send its descriptors,
  Nonce nonce{};                   ///< with this.
  CUuuid device{};
  std::uint64_t host_bytes = 0, device_bytes = 0, slot_bytes = 0;
};

/// How a rank comes by the memory of its peers without waiting in turn: it tells all of them at once who it is, and
/// whoever hears of a peer sends what was offered to it, at any time and from any thread. So a rank waits for the
/// hello of a peer that it needs, and never for another rank's patience. Calls no driver. Thread-safe, but that one
/// thread at a time greets and awaits.
class Introductions {
 public:
  /// Called several times a second while a rank waits; throws to end it.
  using Look = std::function<void()>;

  /// The text that tells `peer` what is in `own`, of which the mailbox and the nonce are written here.
  [[nodiscard]] std::string greeting(int peer, Hello own);
  /// Takes a greeting of `peer`. @throws UsageError if it is none, SystemError as Mailbox::send().
  void heard(int peer, std::string_view text);
  /// Has descriptors sent to `peer`, now or when its hello comes. They must stay open until forget(), or the
  /// end. @throws SystemError as Mailbox::send().
  void offer(int set, int peer, std::array<int, 2> descriptors);
  /// Sends again what peers had no room for. Called from time to time; cheap where there is nothing.
  void send_again() noexcept;
  /// @throws SystemError naming `peer` when the deadline passes.
  [[nodiscard]] Hello await_hello(int set, int peer, Deadline deadline, Look const& look);
  /// What the peer offers, once.
  [[nodiscard]] std::array<FileDescriptor, 2> await_descriptors(int set, int peer, Deadline deadline, Look const& look);
  /// Sends `peer`, which has all that was offered, one descriptor more. @returns false, and sends nothing, where it
  /// cannot be done now. @throws SystemError as Mailbox::send().
  [[nodiscard]] bool add(int set, int peer, int descriptor);
  /// Makes room in the mailbox, which holds few letters. @throws SystemError as Mailbox::receive().
  void take_letters() { mailbox_.take_letters(); }
  /// The next that the peer added. @throws SystemError naming it when the deadline passes.
  [[nodiscard]] FileDescriptor await_added(int set, int peer, Deadline deadline);
  /// Waits until everything offered of a set is with its peers. @throws SystemError when the deadline passes.
  void await_room(int set, Deadline deadline, Look const& look);
  void forget(int set);

 private:
  struct Acquaintance {
    Nonce own_nonce{};
    std::optional<Hello> hello;
    std::optional<std::array<int, 2>> offered;
    bool is_settled = false;  ///< Sent, or the peer has gone.
  };
  using Key = std::pair<int, int>;  ///< Set and peer.

  void send(int peer, Acquaintance& acquaintance);
  [[nodiscard]] Nonce own_nonce(int set, int peer);

  Mailbox mailbox_;
  std::mutex mutex_;
  std::map<Key, Acquaintance> acquaintances_;
  bool has_unsent_ = false;
};

}  // namespace headway::comm::nvlink
