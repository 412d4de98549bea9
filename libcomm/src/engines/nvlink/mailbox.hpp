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

/// Drawn by a receiver and told to one peer only: what comes with it is of that peer.
using Nonce = std::array<std::byte, 16>;

enum class Delivery { kDone, kFull, kGone };

/// Takes descriptors that peers on this host send: an AF_UNIX socket for datagrams, so that nobody need listen while
/// they come.
class Mailbox {
 public:
  /// @throws SystemError.
  Mailbox();
  /// The address for send(), without its leading zero byte.
  [[nodiscard]] std::string const& name() const { return name_; }
  /// Sends duplicates of two descriptors to the mailbox `to`, unless it is full or gone; does not wait. Thread-safe.
  /// @throws SystemError naming `peer`.
  [[nodiscard]] Delivery send(std::string const& to, Nonce const& nonce, std::array<int, 2> descriptors,
                              int peer) const;
  /// Until forget() what comes with `nonce` is kept; what comes with another is closed.
  void expect(Nonce const& nonce) { expected_[nonce]; }
  void forget(Nonce const& nonce) { expected_.erase(nonce); }
  /// The next descriptors that come with an expected `nonce`, in the order in which they were sent. @throws SystemError
  /// naming `peer` when the deadline passes, or where this process may have no more descriptors; what `look` throws,
  /// which is called several times a second.
  [[nodiscard]] std::array<FileDescriptor, 2> receive(Nonce const& nonce, Deadline deadline, int peer,
                                                      std::function<void()> const& look);
  /// Keeps what has come for receive(). @throws SystemError where this process may have no more descriptors.
  void take_letters() {
    while (take_letter()) {
    }
  }

 private:
  using Letter = std::array<FileDescriptor, 2>;

  /// What has come with `nonce`; none: nothing so far.
  [[nodiscard]] std::optional<Letter> take(Nonce const& nonce);
  /// @returns whether one was there.
  bool take_letter();

  std::string name_;
  FileDescriptor socket_;
  std::map<Nonce, std::deque<Letter>> expected_;
};

}  // namespace headway::comm::nvlink
