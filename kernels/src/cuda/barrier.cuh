// SPDX-License-Identifier: Apache-2.0

// mbarriers of sm_90 in shared memory, and the helpers of warp-specialised kernels: register reallocation
// (setmaxnreg) and positions in rings of stages.
//
// Pattern: a producer warp copies tiles into a ring of stages by TMA, and consumer warpgroups compute on them. Each
// stage has two barriers. `full` ends a phase when all announced bytes have arrived; consumers wait for it. `empty`
// ends a phase when all consumer warps have released the stage; the producer waits for it before it copies again.
//
// Example: a ring of 2 stages. The producer fills stages 0, 1, 0, 1 in phases of parity 0, 0, 1, 1. For its first pass
//  it waits for parity 1 of `empty`, which a new barrier grants at once. Before it fills stage 0 again it waits for
//  parity 0 of `empty`: the consumers' release of the first tile.
//
// Invariant: producers and consumers step through the ring in the same order, so two parities tell phases apart. Nobody
//  can be two phases behind, as a stage is not filled again before it was released.

#pragma once

#include "cuda/device.cuh"

// Tests compile kernels for an emulator on the CPU: see device.cuh.
#if defined(HEADWAY_DEVICE_EMULATOR)
#include "barrier_emulation.hpp"
#endif

namespace headway::kernels {

/// An mbarrier in shared memory. A phase ends when `count` threads have arrived and all announced bytes have been
/// copied. The first phase has parity 0. A wait for parity 1 on a new barrier returns at once, so a producer may wait
/// for an empty stage before anyone has released it.
using Barrier = std::uint64_t;

/// Shared memory that one block of threads may use on sm_90, in bytes.
inline constexpr std::uint32_t kMaxSharedBytes = 227 * 1024;

#if defined(HEADWAY_DEVICE_EMULATOR)

inline std::uint32_t shared_address(void const* pointer) { return device_emulator::shared_address(pointer); }
inline void mbarrier_init(Barrier* barrier, std::uint32_t count) { device_emulator::mbarrier_init(barrier, count); }
inline void fence_barrier_init() {}
inline void fence_async_proxy() {}
inline void arrive(Barrier* barrier) { device_emulator::arrive(barrier, 0); }
inline void expect_tx(Barrier* barrier, std::uint32_t num_bytes) { device_emulator::expect_tx(barrier, num_bytes); }
inline void arrive_and_expect_tx(Barrier* barrier, std::uint32_t num_bytes) {
  device_emulator::arrive(barrier, num_bytes);
}
inline void wait(Barrier* barrier, std::uint32_t parity) { device_emulator::wait(barrier, parity); }
template <int kRegisters>
void warpgroup_reg_dealloc() {}
template <int kRegisters>
void warpgroup_reg_alloc() {}

#else

/// Initialises the barrier for phases of `count` arrivals. One thread calls it, then fence_barrier_init().
__device__ __forceinline__ void mbarrier_init(Barrier* barrier, std::uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}

/// Makes initialised barriers visible to the async proxy (TMA). Call it between mbarrier_init() and the barrier of the
/// block.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Makes this thread's writes to shared memory visible to TMA and wgmma operations that start after the next barrier.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Arrives once at the current phase, with release semantics.
__device__ __forceinline__ void arrive(Barrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

/// Announces bytes that a TMA copy will bring in this phase. The thread must arrive later in the same phase.
__device__ __forceinline__ void expect_tx(Barrier* barrier, std::uint32_t num_bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(num_bytes)
               : "memory");
}

/// Arrives and announces bytes that a TMA copy will bring in this phase.
__device__ __forceinline__ void arrive_and_expect_tx(Barrier* barrier, std::uint32_t num_bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(num_bytes)
               : "memory");
}

/// Waits until the phase of this parity has ended, with acquire semantics.
__device__ __forceinline__ void wait(Barrier* barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished;\n"
      "bra again;\n"
      "finished:\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

/// Lowers or raises the number of registers of each thread. All warps of a warpgroup call it with the same number.
template <int kRegisters>
__device__ __forceinline__ void warpgroup_reg_dealloc() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void warpgroup_reg_alloc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

#endif

/// Arrives once per warp, after all its lanes have come here. Barriers for consumers therefore count warps.
__device__ __forceinline__ void release(Barrier* barrier) {
  __syncwarp();
  if (is_first_lane()) arrive(barrier);
}

/// Position in a ring of kSize stages: the stage's index and the parity of its current phase. Producers and consumers
/// advance through the ring in the same order.
template <int kSize>
struct RingPosition {
  std::uint32_t index = 0, parity = 0;

  __device__ __forceinline__ void advance() {
    if (++index == kSize) {
      index = 0;
      parity ^= 1;
    }
  }
  /// Position after `steps` steps. If kSize is a power of two, the caller needs no register besides the counter.
  [[nodiscard]] static __device__ __forceinline__ RingPosition after(std::uint32_t steps) {
    return {steps % kSize, steps / kSize % 2};
  }
  [[nodiscard]] __device__ __forceinline__ RingPosition previous() const {
    return index == 0 ? RingPosition{kSize - 1, parity ^ 1} : RingPosition{index - 1, parity};
  }
};

}  // namespace headway::kernels
