// SPDX-License-Identifier: Apache-2.0

// Doorbell: wakes a sleeping rank without a system call while it is awake.
//
// Idea: the waiter announces that it may sleep (arm), looks for messages once more, then sleeps. The ringer stores
// its message, then looks whether the waiter is armed. Each side stores first and loads second, with a full fence
// between (Dekker's pattern), so at least one of them sees the other: the waiter finds the message, or the ringer
// rings.
//
// Example without the fences: the ringer's store is still in its store buffer while it reads "not armed"; the waiter
// reads "no message" and sleeps. The message arrives and nobody rings.

#pragma once

#include "headway/comm/endpoint.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>

namespace headway::comm {

/// Timeout in ms for poll() and epoll_wait(): rounded up, clamped to 0 to 60 s.
inline int milliseconds_until(Deadline deadline) {
  auto const now = Clock::now();
  if (deadline <= now) return 0;
  auto const left = std::min<Clock::duration>(deadline - now, std::chrono::seconds(60));
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count());
}

/// Wakes the one thread of a rank that may sleep here, from other threads (eventfd). ring_if_armed() makes no system
/// call while the doorbell is not armed.
class Doorbell {
 public:
  Doorbell() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (fd_ < 0) throw SystemError("eventfd", errno, "doorbell");
  }
  ~Doorbell() { close(fd_); }
  Doorbell(Doorbell const&) = delete;
  Doorbell& operator=(Doorbell const&) = delete;

  [[nodiscard]] int fd() const { return fd_; }
  /// The fence orders the flag before the caller's next look for messages. An exchange alone would not on aarch64,
  /// where a later load may overtake it. Partner: the fence in ring_if_armed().
  void arm() {
    armed_.store(true, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  void disarm() { armed_.store(false, std::memory_order_relaxed); }
  [[nodiscard]] bool is_armed() const { return armed_.load(std::memory_order_relaxed); }
  /// Rings if a thread may sleep. The fence orders the caller's earlier stores before the load of the flag. Partner:
  /// arm().
  void ring_if_armed() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (armed_.load(std::memory_order_relaxed)) ring();
  }
  /// Rings even if the doorbell is not armed.
  void ring() noexcept {
    std::uint64_t const one = 1;
    [[maybe_unused]] auto const written = write(fd_, &one, sizeof one);
  }
  /// Returns at the next ring (at once if there was one since the last drain()), at `deadline`, after 60 s, or at a
  /// signal.
  void sleep(Deadline deadline) const {
    pollfd entry{.fd = fd_, .events = POLLIN, .revents = 0};
    if (::poll(&entry, 1, milliseconds_until(deadline)) > 0) drain();
  }
  /// Consumes the rings so far. The caller must check for messages afterwards.
  void drain() const {
    std::uint64_t count = 0;
    [[maybe_unused]] auto const drained = read(fd_, &count, sizeof count);
  }

 private:
  int fd_;
  std::atomic<bool> armed_ = false;
};

}  // namespace headway::comm
