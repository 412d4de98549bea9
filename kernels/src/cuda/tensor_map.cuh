// SPDX-License-Identifier: Apache-2.0

// Copies of tiles between global and shared memory by the Tensor Memory Accelerator (TMA, sm_90).
//
// A copy is described by a tensor map that the host encodes (sm90/encode_map.cu): address, sizes, strides, box and
// swizzle. One thread starts the copy of a whole box with four coordinates; no thread computes addresses or holds
// data in registers. Arrival is counted in bytes at an mbarrier (barrier.cuh). Reductions go the other way, from
// shared to global memory, and are awaited in groups, as cp.async is.

#pragma once

#include "cuda/barrier.cuh"

// Tests compile kernels for an emulator on the CPU: see device.cuh.
#if defined(HEADWAY_DEVICE_EMULATOR)
#include "tensor_map_emulation.hpp"
#else
#include <cuda.h>
#endif

namespace headway::kernels {

/// Will a tile be read again from the L2 cache soon? Tiles that are read once are evicted first.
enum class TileReads : std::uint8_t { kOnce, kOften };

#if defined(HEADWAY_DEVICE_EMULATOR)

using TensorMap = device_emulator::TensorMap;

inline void prefetch_tensor_map(TensorMap const*) {}
template <TileReads kReads = TileReads::kOften>
void tma_load(void* shared, TensorMap const* map, Barrier* barrier, std::int32_t c0, std::int32_t c1, std::int32_t c2,
              std::int32_t c3) {
  device_emulator::tma_load(shared, map, barrier, {c0, c1, c2, c3});
}
inline void tma_reduce_add(float* global, void const* shared, std::uint32_t num_bytes) {
  device_emulator::tma_reduce_add(global, shared, num_bytes);
}
inline void bulk_commit_group() { device_emulator::this_thread().bulk_stores.commit(); }
template <int kNumLeft>
void bulk_wait_group_read() {
  device_emulator::this_thread().bulk_stores.finish(kNumLeft);
}
template <int kNumLeft>
void bulk_wait_group() {
  device_emulator::this_thread().bulk_stores.finish(kNumLeft);
}

#else

/// TMA descriptor of rank 4. A kernel takes it by value as a `__grid_constant__` parameter, or inside one.
using TensorMap = CUtensorMap;

__device__ __forceinline__ void prefetch_tensor_map(TensorMap const* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/// Starts the copy of the box at these coordinates, innermost dimension first. One thread calls it; `barrier` counts
/// the bytes of the whole box. Elements outside the tensor are read as 0.
template <TileReads kReads = TileReads::kOften>
__device__ __forceinline__ void tma_load(void* shared, TensorMap const* map, Barrier* barrier, std::int32_t c0,
                                         std::int32_t c1, std::int32_t c2, std::int32_t c3) {
  if constexpr (kReads == TileReads::kOnce) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
        "[%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared_address(shared)),
        "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(evict_first())
        : "memory");
    return;
  }
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

/// Starts to add floats in shared memory to as many floats in global memory. Each addition is atomic on its own.
__device__ __forceinline__ void tma_reduce_add(float* global, void const* shared, std::uint32_t num_bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(global),
               "r"(shared_address(shared)), "r"(num_bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Waits until at most the `kNumLeft` youngest groups of this thread have not yet read shared memory. bulk_wait_group()
/// waits until their writes are complete.
template <int kNumLeft>
__device__ __forceinline__ void bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kNumLeft) : "memory");
}
template <int kNumLeft>
__device__ __forceinline__ void bulk_wait_group() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kNumLeft) : "memory");
}

#endif

}  // namespace headway::kernels
