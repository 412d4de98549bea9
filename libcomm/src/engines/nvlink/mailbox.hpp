#pragma once

#include "file_descriptor.hpp"
#include "headway/comm/endpoint.hpp"

#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>

namespace headway::comm::nvlink {

/// Random number drawn by a receiver and told to one peer only. It authenticates that peer's messages.
using Nonce = std::array<std::byte, 16>;

enum class Delivery { kDone, kFull, kGone };

/// Receives descriptors from peers on this host. It is an AF_UNIX datagram socket, so no thread has to listen while
/// they arrive.
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
  /// Keeps messages with `nonce` until forget(). Messages with an unknown nonce are closed.
  void expect(Nonce const& nonce) { expected_[nonce]; }
  void forget(Nonce const& nonce) { expected_.erase(nonce); }
  /// Waits for the next descriptors with an expected `nonce`, in the order in which they were sent. Calls `look`
  /// several times a second; its exceptions pass through.
  /// @throws SystemError naming `peer` when the deadline passes, or if the process is out of descriptors.
  [[nodiscard]] std::array<FileDescriptor, 2> receive(Nonce const& nonce, Deadline deadline, int peer,
                                                      std::function<void()> const& look);
  /// Moves the messages of the socket to the queues of receive().
  /// @throws SystemError if the process is out of descriptors.
  void take_letters() {
    while (take_letter()) {
    }
  }

 private:
  using Letter = std::array<FileDescriptor, 2>;

  /// Next message with `nonce`; empty if none has arrived.
  [[nodiscard]] std::optional<Letter> take(Nonce const& nonce);
  /// Reads one message from the socket. @returns whether there was one.
  bool take_letter();

  std::string name_;
  FileDescriptor socket_;
  std::map<Nonce, std::deque<Letter>> expected_;
};

}  // namespace headway::comm::nvlink
