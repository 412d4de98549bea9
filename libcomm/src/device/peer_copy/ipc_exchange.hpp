// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/peer_copy/mailbox.hpp"
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

namespace headway::comm::peer_copy {

/// Message that a rank sends to a peer before they share memory. `set` numbers the shared memory, equal on all ranks.
struct Hello {
  int set = 0;
  std::array<char, 96> host{};     ///< host_identity().
  std::array<char, 64> mailbox{};  ///< Address to which the peer sends its descriptors,
  Nonce nonce{};                   ///< with this nonce.
  CUuuid device{};                 ///< Device of the sender.
  /// Sizes that must be equal on all ranks: of the sender's shared memory for one peer, and of its first channel's
  /// slots.
  std::uint64_t host_bytes = 0, device_bytes = 0, slot_bytes = 0;
};

/// Exchange of file descriptors of memory between ranks of one host, in any order.
///
/// Each rank sends its hello to all peers at once. Whichever thread receives a peer's hello sends the descriptors
/// for that peer. So a rank waits only for the hellos of the peers that it needs, never until another rank has
/// finished waiting. It calls no driver function. Thread-safe, except that only one thread at a time may greet and
/// await.
class IpcExchange {
 public:
  /// Callback that runs several times a second while a rank waits. It throws to end the wait.
  using WhileWaiting = std::function<void()>;

  /// Text of the hello for `peer`: a copy of `own`, with mailbox and nonce filled in.
  [[nodiscard]] std::string greeting(int peer, Hello own);
  /// Processes a hello of `peer`. @throws UsageError if it is malformed; SystemError as Mailbox::send().
  void on_oob(int peer, std::string_view text);
  /// Sends `descriptors` to `peer`, now or when its hello arrives. They must stay open until forget() or destruction.
  /// @throws SystemError as Mailbox::send().
  void send_descriptors(int set, int peer, std::array<int, 2> descriptors);
  /// Retries descriptors for which a peer's mailbox was full. Call it from time to time; cheap if there is nothing to
  /// send.
  void send_again() noexcept;
  /// Waits for the hello of `peer`. @throws SystemError naming `peer` when the deadline passes.
  [[nodiscard]] Hello await_hello(int set, int peer, Deadline deadline, WhileWaiting const& while_waiting);
  /// Waits for the descriptors that the peer sends. They arrive only once.
  [[nodiscard]] std::array<base::FileDescriptor, 2> await_descriptors(int set, int peer, Deadline deadline,
                                                                      WhileWaiting const& while_waiting);
  /// Sends one more descriptor to `peer`, after those of send_descriptors().
  /// @returns false, with no effect, if it cannot be sent now. @throws SystemError as Mailbox::send().
  [[nodiscard]] bool add(int set, int peer, int descriptor);
  /// Empties the mailbox, which holds only a few messages. @throws SystemError as Mailbox::receive().
  void receive_messages() { mailbox_.receive_messages(); }
  /// Waits for the next descriptor that the peer sent with add().
  /// @throws SystemError naming the peer when the deadline passes.
  [[nodiscard]] base::FileDescriptor await_added(int set, int peer, Deadline deadline);
  /// Waits until all peers of `set` that have said hello have received the descriptors.
  /// @throws SystemError when the deadline passes.
  void await_room(int set, Deadline deadline, WhileWaiting const& while_waiting);
  /// Drops the state of `set`, on which descriptors may be closed.
  void forget(int set);

 private:
  struct PeerState {
    Nonce own_nonce{};
    std::optional<Hello> hello;
    std::optional<std::array<int, 2>> descriptors;
    bool is_settled = false;  ///< True if sent, or if the peer is gone.
  };
  using Key = std::pair<int, int>;  ///< (set, peer).

  void send(int peer, PeerState& state);
  [[nodiscard]] Nonce own_nonce(int set, int peer);

  Mailbox mailbox_;
  std::mutex mutex_;
  std::map<Key, PeerState> peers_;
  /// True if send_again() has something to try. Guarded by mutex_, like peers_.
  bool has_unsent_ = false;
};

}  // namespace headway::comm::peer_copy
