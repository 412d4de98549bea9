#pragma once

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

namespace headway::comm {

/// Orders "store, then load" between processes, at the sleeper's cost. A ringer (stores a message, then looks whether
/// the peer sleeps) is on the fast path: a full fence there waits for all its stores to reach the other cores, about a
/// quarter of a small exchange. So the sleeper (says that it sleeps, then looks for messages) makes the kernel run a
/// fence on all cores instead. Where the kernel cannot, both sides fence.
class AsymmetricFence {
 public:
  AsymmetricFence() : by_kernel_(syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0) {}

  /// All ranks must come to the same answer: they share a kernel, and each registers.
  [[nodiscard]] bool by_kernel() const { return by_kernel_; }
  void fence_ringer() const {
    if (by_kernel_) {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      std::atomic_thread_fence(std::memory_order_seq_cst);
    }
  }
  void fence_sleeper() const {
    if (by_kernel_) syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }

 private:
  bool by_kernel_;
};

}  // namespace headway::comm
