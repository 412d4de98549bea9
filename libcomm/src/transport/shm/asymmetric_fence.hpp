// SPDX-License-Identifier: Apache-2.0

// The fence behind the doorbells of the shared-memory transport (doorbell.hpp explains why one is needed).

#pragma once

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

namespace headway::comm {

/// Store-load fence between processes whose cost falls on the sleeper (Dekker's pattern).
/// The ringer stores a message, then checks whether the peer sleeps. It is on the fast path: a full fence there waits
/// until all its stores have reached the other cores, about a quarter of a small exchange.
/// The sleeper announces that it sleeps, then checks for messages. With membarrier(2) its fence runs on all cores of
/// the registered processes, and the ringer needs only a compiler barrier.
/// If the kernel lacks it, both sides issue a full fence.
class AsymmetricFence {
 public:
  AsymmetricFence() : by_kernel_(syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0) {}

  /// True if the kernel runs the fence. All ranks of a host get the same answer: they share a kernel, and each
  /// registers.
  [[nodiscard]] bool by_kernel() const { return by_kernel_; }
  /// Call between the store of a message and the load of the peer's sleep flag.
  void fence_ringer() const {
    if (by_kernel_) {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      std::atomic_thread_fence(std::memory_order_seq_cst);
    }
  }
  /// Call between the store of the own sleep flag and the check for messages.
  void fence_sleeper() const {
    if (by_kernel_) syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }

 private:
  bool by_kernel_;
};

}  // namespace headway::comm
