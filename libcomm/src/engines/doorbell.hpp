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

/// Time-out for poll() and epoll_wait(): 0 to 60 s, rounded up.
inline int milliseconds_until(Deadline deadline) {
  auto const now = Clock::now();
  if (deadline <= now) return 0;
  auto const left = std::min<Clock::duration>(deadline - now, std::chrono::seconds(60));
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count());
}

/// Wakes the sleepers of one rank from other threads. Rings cost nothing while nobody is armed.
class Doorbell {
 public:
  Doorbell() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (fd_ < 0) throw SystemError("eventfd", errno, "doorbell");
  }
  ~Doorbell() { close(fd_); }
  Doorbell(Doorbell const&) = delete;
  Doorbell& operator=(Doorbell const&) = delete;

  [[nodiscard]] int fd() const { return fd_; }
  /// The exchange orders the flag before the caller's next poll; partner: ring_if_armed().
  void arm() { armed_.exchange(true, std::memory_order_seq_cst); }
  void disarm() { armed_.store(false, std::memory_order_relaxed); }
  [[nodiscard]] bool is_armed() const { return armed_.load(std::memory_order_relaxed); }
  /// The fence orders what was written before against the flag.
  void ring_if_armed() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (armed_.load(std::memory_order_relaxed)) ring();
  }
  void ring() noexcept {
    std::uint64_t const one = 1;
    [[maybe_unused]] auto const written = write(fd_, &one, sizeof one);
  }
  /// Ends with the next ring, or one since the last drain().
  void sleep(Deadline deadline) const {
    pollfd entry{.fd = fd_, .events = POLLIN, .revents = 0};
    if (::poll(&entry, 1, milliseconds_until(deadline)) > 0) drain();
  }
  /// Forgets rings so far: whoever calls it looks for messages afterwards.
  void drain() const {
    std::uint64_t count = 0;
    [[maybe_unused]] auto const drained = read(fd_, &count, sizeof count);
  }

 private:
  int fd_;
  std::atomic<bool> armed_ = false;
};

}  // namespace headway::comm
