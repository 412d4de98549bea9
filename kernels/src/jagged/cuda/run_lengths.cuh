// SPDX-License-Identifier: Apache-2.0
#pragma once

// Run lengths on a device: a scan and two kernels.
//
// Idea: an inclusive scan of "a run begins here" gives each entry the number of runs up to it. The first kernel turns
// this into the index of its run and writes where each run begins. The second kernel subtracts neighbouring begins.
//
// Example: 7 7 5 7. The scan gives 1 1 2 3, run_of 0 0 1 2, begins 0 2 3 and the end 4, lengths 2 1 1 0.
//
// Complexity: three passes over the list; (size + 1) * 8 bytes of scratch besides those of the scan.

#include "headway/kernels/run_lengths.hpp"
#include "jagged/cuda/warp_rows.cuh"

namespace headway::kernels {

template <class Key>
__device__ inline bool begins_run(Key const* keys, std::int64_t i) {
  return i == 0 || keys[i] != keys[i - 1];
}

/// First kernel: writes run_of, values, and where each run begins. The list's size follows the last begin, so the last
/// run has an end.
/// @param begins (size + 1)
template <class Key>
__global__ void __launch_bounds__(kWarp* kWarpsOfBlock)
    begin_runs_kernel(__grid_constant__ RunLengths const runs, std::int64_t* begins) {
  std::int64_t const i = std::int64_t{blockIdx.x} * (kWarp * kWarpsOfBlock) + threadIdx.x;
  if (i >= runs.size) return;
  auto const* const keys = static_cast<Key const*>(runs.keys);
  std::int64_t const run = runs.run_of[i] - 1;
  runs.run_of[i] = run;
  if (begins_run(keys, i)) {
    static_cast<Key*>(runs.values)[run] = keys[i];
    begins[run] = i;
  }
  if (i + 1 == runs.size) {
    *runs.num_runs = run + 1;
    begins[run + 1] = runs.size;
  }
}

/// Second kernel: lengths from neighbouring begins; zeros behind the last run.
template <class Key>
__global__ void __launch_bounds__(kWarp* kWarpsOfBlock)
    measure_runs_kernel(__grid_constant__ RunLengths const runs, std::int64_t const* begins) {
  std::int64_t const i = std::int64_t{blockIdx.x} * (kWarp * kWarpsOfBlock) + threadIdx.x;
  if (i >= runs.size) return;
  bool const is_there = i < *runs.num_runs;
  runs.lengths[i] = is_there ? begins[i + 1] - begins[i] : 0;
  if (!is_there) static_cast<Key*>(runs.values)[i] = 0;
}

}  // namespace headway::kernels
