// SPDX-License-Identifier: Apache-2.0
#pragma once

// Device primitives: named barriers, memory with cache hints, acquire and release. nvcc compiles them for GPUs, and an
// emulator on the CPU compiles the same kernels (tests/support/device_emulator), so that they are tested without a GPU.
// The folder of the emulator documents the subset of CUDA that it supports.
#if defined(__CUDACC__)
#include <cuda_runtime.h>
#else
#include "cuda_dialect.hpp"
#endif

#include <cstddef>
#include <cstdint>

namespace headway::kernels {

inline constexpr int kWarpThreads = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

/// Index of this thread's warpgroup in its block. The shuffle tells the compiler that the value is uniform in a warp.
__device__ __forceinline__ int this_warpgroup() {
  return __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x / 128), 0);
}

/// Is this lane 0 of its warp?
[[nodiscard]] __device__ __forceinline__ bool is_first_lane() { return threadIdx.x % kWarpThreads == 0; }

/// Index of this thread in its warpgroup, read from the special register each time. The compiler therefore recomputes
/// what depends on it, instead of keeping it in registers between calls.
[[nodiscard]] __device__ __forceinline__ int reread_thread() {
#if defined(HEADWAY_DEVICE_EMULATOR)
  auto const thread = threadIdx.x;
#else
  unsigned thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
#endif
  return static_cast<int>(thread % 128);
}

#if defined(HEADWAY_DEVICE_EMULATOR)

inline std::byte* shared_memory() { return device_emulator::this_thread().block->shared(); }

inline void named_barrier_sync(int barrier, int num_threads) {
  device_emulator::this_thread().block->sync(unsigned(barrier), unsigned(num_threads), "named_barrier_sync");
}
inline void named_barrier_arrive(int barrier, int num_threads) {
  device_emulator::this_thread().block->arrive(unsigned(barrier), unsigned(num_threads));
}

/// Polls `is_ready` until it is true. Another block of threads must make it so.
template <class Ready>
void spin_until(Ready is_ready) {
  device_emulator::wait_until("spin_until", is_ready);
}

inline std::int32_t load_acquire(std::int32_t const* address) { return *address; }
inline void store_release(std::int32_t* address, std::int32_t value) { *address = value; }

inline void red_add_v4(float* address, float4 values) {
  address[0] += values.x;
  address[1] += values.y;
  address[2] += values.z;
  address[3] += values.w;
}

inline void store_v4_streaming(void* address, std::uint32_t const (&words)[4]) {
  if (reinterpret_cast<std::uintptr_t>(address) % 16 != 0) throw device_emulator::KernelError("an unaligned store");
  std::memcpy(address, words, sizeof words);
}

inline float4 load_evict_last(float4 const* address) { return *address; }
inline void store_evict_last(float4* address, float4 values) { *address = values; }

/// Rounds to 11 bits of mantissa, so that the error is as large as that of the instruction may be.
inline float tanh_approximate(float x) {
  std::uint32_t const bits = std::bit_cast<std::uint32_t>(std::tanh(x));
  return std::bit_cast<float>((bits + 0x1000) & ~0x1fffu);
}

#else

/// The dynamic shared memory of the block; each kernel lays it out itself.
__device__ __forceinline__ std::byte* shared_memory() {
  extern __shared__ __align__(1024) std::byte headway_shared_memory[];
  return headway_shared_memory;
}

__device__ __forceinline__ std::uint32_t shared_address(void const* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Waits at a named barrier until `num_threads` threads have come. Barriers 1 to 15 are free for kernels; 0 is that of
/// __syncthreads().
__device__ __forceinline__ void named_barrier_sync(int barrier, int num_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(num_threads) : "memory");
}
/// Arrives at a named barrier without waiting. `num_threads` counts those that arrive and those that wait.
__device__ __forceinline__ void named_barrier_arrive(int barrier, int num_threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(num_threads) : "memory");
}

/// Polls `is_ready` until it is true. Another block of threads must make it so.
template <class Ready>
__device__ __forceinline__ void spin_until(Ready is_ready) {
  while (!is_ready()) __nanosleep(20);
}

/// Loads a number in global memory with acquire semantics at GPU scope. Pairs with store_release() of another block.
__device__ __forceinline__ std::int32_t load_acquire(std::int32_t const* address) {
  std::int32_t value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
/// Stores with release semantics at GPU scope; other blocks read it by load_acquire().
__device__ __forceinline__ void store_release(std::int32_t* address, std::int32_t value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

/// Adds to four floats in global memory, 16-byte aligned. Each addition is atomic on its own. Needs sm_90.
__device__ __forceinline__ void red_add_v4(float* address, float4 values) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address), "f"(values.x), "f"(values.y),
               "f"(values.z), "f"(values.w)
               : "memory");
}

/// Stores 16 aligned bytes to global memory by one instruction; for an assignment the compiler may emit four. The hint
/// (.cs) marks the line as streaming: the L2 cache evicts it before lines that are read again.
__device__ __forceinline__ void store_v4_streaming(void* address, std::uint32_t const (&words)[4]) {
  asm volatile("st.global.cs.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(words[0]), "r"(words[1]),
               "r"(words[2]), "r"(words[3])
               : "memory");
}

/// L2 cache policies for loads and stores: lines that are evicted first, or last.
[[nodiscard]] __device__ __forceinline__ std::uint64_t evict_first() {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
[[nodiscard]] __device__ __forceinline__ std::uint64_t evict_last() {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/// Loads from global memory, and keeps the line in the L2 cache as long as possible (evict_last).
[[nodiscard]] __device__ __forceinline__ float4 load_evict_last(float4 const* address) {
  float4 values;
  asm volatile("ld.global.L2::cache_hint.v4.f32 {%0, %1, %2, %3}, [%4], %5;"
               : "=f"(values.x), "=f"(values.y), "=f"(values.z), "=f"(values.w)
               : "l"(address), "l"(evict_last())
               : "memory");
  return values;
}
/// Stores to global memory, and keeps the line in the L2 cache as long as possible (evict_last).
__device__ __forceinline__ void store_evict_last(float4* address, float4 values) {
  asm volatile("st.global.L2::cache_hint.v4.f32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(address), "f"(values.x),
               "f"(values.y), "f"(values.z), "f"(values.w), "l"(evict_last())
               : "memory");
}

/// tanh(x) by one instruction; its relative error is at most 2^-11.
__device__ __forceinline__ float tanh_approximate(float x) {
  float result;
  asm("tanh.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

#endif

}  // namespace headway::kernels
