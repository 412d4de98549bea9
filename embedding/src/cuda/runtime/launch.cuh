// SPDX-License-Identifier: Apache-2.0

// Launch shapes of the table kernels: one thread per item, per quad of columns, or a group of lanes per row. A quad
// is four neighbouring float32 columns, the 16 bytes that a thread loads at once (quad.cuh). Blocks have 256 threads
// everywhere, so that kernels can size their shared memory at compile time.

#pragma once

#include "headway/base/cuda_check.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

namespace headway::embedding {

inline constexpr std::uint32_t kBlockThreads = 256;
inline constexpr std::uint32_t kWarp = 32, kAllLanes = 0xffffffff;

/// Blocks of kBlockThreads for `num_threads` threads.
inline std::uint32_t num_blocks(std::uint64_t num_threads) {
  return static_cast<std::uint32_t>((num_threads + kBlockThreads - 1) / kBlockThreads);
}

/// Index of this thread in a one-dimensional grid.
__device__ inline std::uint32_t thread_index() { return blockIdx.x * kBlockThreads + threadIdx.x; }

/// Kernel: one thread per i.
template <class Visit>
__global__ void __launch_bounds__(kBlockThreads)
    for_each_kernel(std::uint64_t count, __grid_constant__ Visit const visit) {
  std::uint64_t const i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) visit(i);
}

/// Calls `visit(i)` for each i < count, one thread per i. @param name of the kernel, for errors
template <class Visit>
void for_each_async(std::uint64_t count, Visit visit, cudaStream_t stream, char const* name) {
  if (count == 0) return;
  for_each_kernel<<<num_blocks(count), kBlockThreads, 0, stream>>>(count, visit);
  base::check_launch(name);
}

/// Lanes of a warp that share one row: one per quad of columns, rounded up to a power of two, at most 32. A power of
/// two makes the lane index a mask, and rows never straddle warps. Dim 12 has 3 quads, so 4 lanes, and a warp has 8
/// rows.
struct RowLanes {
  explicit RowLanes(std::uint32_t num_quads) : shift(std::bit_width(std::bit_ceil(std::min(num_quads, kWarp))) - 1) {}

  int shift;  ///< log2 of the number of lanes.

  [[nodiscard]] __host__ __device__ std::uint32_t count() const { return 1U << shift; }

  /// Mask of the lanes that share this thread's row.
  [[nodiscard]] __device__ std::uint32_t mask() const {
    return count() == kWarp ? kAllLanes : ((1U << count()) - 1) << (threadIdx.x % kWarp & ~(count() - 1));
  }
};

/// Groups of keys for the lanes of a row: first each lane looks up one key of the group, then all lanes process the
/// rows of these keys together. With dim 32, lanes 0 to 7 have keys 0 to 7, and lanes 8 to 15 have keys 8 to 15.
struct KeyGroups {
  /// Most keys of a group. With more, a small batch would have too few warps.
  static constexpr std::uint32_t kMostKeys = 16;

  explicit KeyGroups(std::uint32_t num_quads) : lanes(num_quads), num_keys(std::min(kMostKeys, lanes.count())) {}

  RowLanes lanes;
  std::uint32_t num_keys;  ///< Keys per group.

  /// Blocks for `size` keys, less than 2^31.
  [[nodiscard]] std::uint32_t blocks(std::uint32_t size) const {
    return num_blocks((std::uint64_t{size} + num_keys - 1) / num_keys << lanes.shift);
  }
  [[nodiscard]] __device__ std::uint32_t lane() const { return threadIdx.x & (lanes.count() - 1); }
  /// First key of the group that `thread` belongs to.
  [[nodiscard]] __device__ std::uint32_t first_key(std::uint32_t thread = thread_index()) const {
    return (thread >> lanes.shift) * num_keys;
  }
  /// Are all keys of this warp's groups at or beyond `size`?
  [[nodiscard]] __device__ bool is_warp_beyond(std::uint32_t size) const {
    return first_key(thread_index() / kWarp * kWarp) >= size;
  }
};

/// Kernel: the lanes of a row go through its quads in steps of their number.
template <class Visit>
__global__ void __launch_bounds__(kBlockThreads)
    for_each_quad_kernel(std::uint32_t num_rows, std::uint32_t num_quads, RowLanes lanes,
                         __grid_constant__ Visit const visit) {
  std::uint64_t const thread = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  std::uint64_t const row = thread >> lanes.shift;
  if (row >= num_rows) return;
  for (auto quad = static_cast<std::uint32_t>(thread) & (lanes.count() - 1); quad < num_quads; quad += lanes.count()) {
    visit(static_cast<std::uint32_t>(row), quad);
  }
}

/// Calls `visit(row, quad)` for each quad of columns of each row; neighbouring threads have neighbouring columns.
template <class Visit>
void for_each_quad_async(std::size_t num_rows, std::uint32_t num_quads, Visit visit, cudaStream_t stream,
                         char const* name) {
  if (num_rows == 0) return;
  RowLanes const lanes(num_quads);
  for_each_quad_kernel<<<num_blocks(num_rows << lanes.shift), kBlockThreads, 0, stream>>>(
      static_cast<std::uint32_t>(num_rows), num_quads, lanes, visit);
  base::check_launch(name);
}

/// Adds to a counter of 32 or 64 bits with one atomic.
template <class T>
__device__ inline void add_to(T* counter, std::uint32_t more) {
  using Word = std::conditional_t<sizeof(T) == 8, unsigned long long, unsigned int>;
  atomicAdd(reinterpret_cast<Word*>(counter), static_cast<Word>(more));
}

/// Adds 1 to `*counter` per calling thread, with one atomic for the converged threads of a warp.
template <class T>
__device__ inline void count_one(T* counter) {
  std::uint32_t const active = __activemask();
  std::uint32_t const lane = threadIdx.x % kWarp;
  if (lane == static_cast<std::uint32_t>(__ffs(static_cast<int>(active))) - 1) {
    add_to(counter, static_cast<std::uint32_t>(__popc(active)));
  }
}

}  // namespace headway::embedding
