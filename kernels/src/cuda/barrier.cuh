#pragma once

// Barriers in shared memory (mbarrier) of sm_90, and what goes with roles of warps.

#include "cuda/device.cuh"

#if defined(HEADWAY_DEVICE_EMULATOR)
#include "barrier_emulation.hpp"
#endif

namespace headway::kernels {

/// A barrier in shared memory. A phase ends when `count` threads have arrived and all bytes that were announced have
/// come; the first phase has parity 0. A wait for the parity before the first (1) ends at once.
using Barrier = std::uint64_t;

/// Of a block of threads on sm_90.
inline constexpr std::uint32_t kMostSharedBytes = 227 * 1024;

#if defined(HEADWAY_DEVICE_EMULATOR)

inline std::uint32_t shared_address(void const* pointer) { return device_emulator::shared_address(pointer); }
inline void init_barrier(Barrier* barrier, std::uint32_t count) { device_emulator::init_barrier(barrier, count); }
inline void fence_barrier_init() {}
inline void fence_async_proxy() {}
inline void arrive(Barrier* barrier) { device_emulator::arrive(barrier, 0); }
inline void expect(Barrier* barrier, std::uint32_t num_bytes) { device_emulator::expect(barrier, num_bytes); }
inline void arrive_expecting(Barrier* barrier, std::uint32_t num_bytes) { device_emulator::arrive(barrier, num_bytes); }
inline void wait(Barrier* barrier, std::uint32_t parity) { device_emulator::wait(barrier, parity); }
template <int kRegisters>
void lower_registers() {}
template <int kRegisters>
void raise_registers() {}

#else

__device__ __forceinline__ void init_barrier(Barrier* barrier, std::uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}

/// Between init_barrier() and the block's barrier: copies see the barriers after it.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// What this thread wrote to shared memory is there for copies and products that start after the next barrier.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void arrive(Barrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

/// Announces bytes that a copy will bring, before this thread arrives.
__device__ __forceinline__ void expect(Barrier* barrier, std::uint32_t num_bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(num_bytes)
               : "memory");
}

/// Arrives, and announces bytes that a copy will bring.
__device__ __forceinline__ void arrive_expecting(Barrier* barrier, std::uint32_t num_bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(num_bytes)
               : "memory");
}

/// Until the phase of this parity has ended.
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

/// Gives registers of each thread of a warpgroup back, or takes them; all its warps do the same.
template <int kRegisters>
__device__ __forceinline__ void lower_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void raise_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

#endif

/// Arrives, each warp for itself, when all its lanes are done.
__device__ __forceinline__ void release(Barrier* barrier) {
  __syncwarp();
  if (is_first_lane()) arrive(barrier);
}

/// The place in a ring of buffers that producers and consumers go through alike.
template <int kSize>
struct RingPosition {
  std::uint32_t index = 0, parity = 0;

  __device__ __forceinline__ void advance() {
    if (++index == kSize) {
      index = 0;
      parity ^= 1;
    }
  }
  /// After so many steps; of a ring whose size is a power of two this needs no register of its own.
  [[nodiscard]] static __device__ __forceinline__ RingPosition after(std::uint32_t steps) {
    return {steps % kSize, steps / kSize % 2};
  }
  [[nodiscard]] __device__ __forceinline__ RingPosition previous() const {
    return index == 0 ? RingPosition{kSize - 1, parity ^ 1} : RingPosition{index - 1, parity};
  }
};

}  // namespace headway::kernels
