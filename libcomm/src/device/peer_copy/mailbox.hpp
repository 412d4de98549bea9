// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/file_descriptor.hpp"
#include "headway/comm/endpoint.hpp"

#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>

namespace headway::comm::peer_copy {

/// Nonce (number used once): 16 random bytes that a receiver draws for one peer and tells that peer only. A message
/// that carries it comes from that peer.
using Nonce = std::array<std::byte, 16>;

/// kDone: the peer's socket holds the message. kFull: try again later. kGone: nobody has that address any more.
enum class Delivery { kDone, kFull, kGone };

/// Receives file descriptors of exported memory from peers on this host. Each message carries two. It is an AF_UNIX
/// datagram socket, so no thread has to listen while they arrive.
class Mailbox {
 public:
  /// @throws SystemError.
  Mailbox();
  /// Abstract socket address for send(), without its leading zero byte.
  [[nodiscard]] std::string const& name() const { return name_; }
  /// Sends duplicates of two descriptors to the mailbox `to`. Never waits.
  /// @returns kFull or kGone, with no effect, if the mailbox is full or closed. Thread-safe.
  /// @throws SystemError naming `peer`.
  [[nodiscard]] Delivery send(std::string const& to, Nonce const& nonce, std::array<int, 2> descriptors,
                              int peer) const;
  /// Keeps messages with `nonce` until forget(). The descriptors of other messages are closed.
  void expect(Nonce const& nonce) { expected_[nonce]; }
  void forget(Nonce const& nonce) { expected_.erase(nonce); }
  /// Waits for the next descriptors with an expected `nonce`, in the order in which they were sent. Calls
  /// `while_waiting` several times a second; its exceptions pass through.
  /// @throws SystemError naming `peer` when the deadline passes, or if the process is out of descriptors.
  [[nodiscard]] std::array<base::FileDescriptor, 2> receive(Nonce const& nonce, Deadline deadline, int peer,
                                                            std::function<void()> const& while_waiting);
  /// Moves the messages of the socket to the queues of receive().
  /// @throws SystemError if the process is out of descriptors, or the socket fails.
  void receive_messages() {
    while (receive_message()) {
    }
  }

 private:
  using Message = std::array<base::FileDescriptor, 2>;  ///< The descriptors of a message.

  /// Next message with `nonce`; empty if none has arrived.
  [[nodiscard]] std::optional<Message> take(Nonce const& nonce);
  /// Reads one message from the socket. @returns whether there was one.
  bool receive_message();

  std::string name_;
  base::FileDescriptor socket_;
  std::map<Nonce, std::deque<Message>> expected_;
};

}  // namespace headway::comm::peer_copy
