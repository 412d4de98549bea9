// SPDX-License-Identifier: Apache-2.0
#pragma once

// Preparation of an HSTU attention call, in one launch before its kernels.
//
// Idea: one thread per sequence checks offsets and counts, one thread per bound checks that time bounds ascend. Then
// all threads set memory to 0: rows behind the last offset, and memory that later kernels add to. An error stops the
// device's context (RefuseOnDevice), and since later kernels wait for this one, nothing is ever written out of bounds.
//
// Example: 2 sequences of 100 and 60 rows in tensors of 256 rows. Thread 0 checks the first sequence, thread 1 the
// second, and all threads set rows 160 to 255 of the output to 0.
//
// Invariants: the next kernel may be launched at once, but it calls wait_on_dependent_grids() before it touches global
// memory, which returns when this kernel has ended. Memory is written in the largest unit (2 to 16 bytes) that divides
// addresses and strides.
// Complexity: one read of the offsets; one write of each cleared unit. Without anything to clear the kernel takes about
// one latency of memory, as all loads of a thread are in flight at once.

#include "cuda/dependent_launch.cuh"
#include "cuda/device.cuh"
#include "cuda/device_refusal.cuh"
#include "hstu/cuda/preparation.hpp"
#include "hstu/sequence_checks.hpp"

#include <cstdint>

namespace headway::kernels {

/// Clears rows from `first` on with all threads of the grid. Contiguous rows take the fast loop without divisions.
template <class Unit>
__device__ __forceinline__ void clear_rows(ClearedRows const& rows, std::int64_t first, std::int64_t thread,
                                           std::int64_t num_threads) {
  if (first < 0) return;  // The thread that checks the offsets refuses them.
  std::int64_t const units = rows.units_of_row(), num_units = (rows.num_rows - first) * units;
  Unit* const data = static_cast<Unit*>(rows.data) + first * rows.row_stride;
  if (rows.are_together()) {
#pragma unroll 4
    for (std::int64_t i = thread; i < num_units; i += num_threads) data[i] = Unit{};
    return;
  }
  for (std::int64_t i = thread; i < num_units; i += num_threads) {
    std::int64_t const row = i / units, in_row = i % units, head = in_row / rows.head_units;
    data[row * rows.row_stride + head * rows.head_stride + in_row % rows.head_units] = Unit{};
  }
}

/// Checks sequences and time bounds, spread over all threads of the grid.
__device__ __forceinline__ void check_hstu_arguments(HstuPreparation const& args, std::int64_t thread,
                                                     std::int64_t num_threads) {
  if (thread == 0 && args.sequences.num_sequences == 0) hstu::check_first_offsets(args.sequences, RefuseOnDevice());
  for (std::int64_t b = thread; b < args.sequences.num_sequences; b += num_threads) {
    hstu::check_sequence(args.sequences, b, RefuseOnDevice());
  }
  for (std::int64_t i = thread + 1; i < args.num_time_bounds; i += num_threads) {
    hstu::check_time_bound(args.time_bounds, i, RefuseOnDevice());
  }
}

/// Kernel: checks, then clears.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) prepare_hstu_kernel(__grid_constant__ HstuPreparation const args) {
  launch_dependent_grids();
  std::int64_t const thread = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  std::int64_t const num_threads = static_cast<std::int64_t>(gridDim.x) * kThreads;
  // These loads overlap those of the checks.
  std::int64_t const first_query = __ldg(args.sequences.query_offsets + args.sequences.num_sequences);
  std::int64_t const first_key = __ldg(args.sequences.key_offsets + args.sequences.num_sequences);
  check_hstu_arguments(args, thread, num_threads);
  for (std::int32_t i = 0; i < args.num_cleared; ++i) {
    ClearedRows const& rows = args.cleared[i];
    std::int64_t const first = rows.behind == ClearedRows::Behind::kNothing   ? 0
                               : rows.behind == ClearedRows::Behind::kQueries ? first_query
                                                                              : first_key;
    if (rows.unit_bytes == 16) clear_rows<uint4>(rows, first, thread, num_threads);
    if (rows.unit_bytes == 8) clear_rows<uint2>(rows, first, thread, num_threads);
    if (rows.unit_bytes == 4) clear_rows<std::uint32_t>(rows, first, thread, num_threads);
    if (rows.unit_bytes == 2) clear_rows<std::uint16_t>(rows, first, thread, num_threads);
  }
}

}  // namespace headway::kernels
