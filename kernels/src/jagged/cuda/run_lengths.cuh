#pragma once

#include "headway/kernels/run_lengths.hpp"
#include "jagged/cuda/warp_rows.cuh"

namespace headway::kernels {

template <class Key>
__device__ inline bool begins_run(Key const* keys, std::int64_t i) {
  return i == 0 || keys[i] != keys[i - 1];
}

/// With `run_of` counting the runs that have begun up to each entry: makes that the number of its run, and writes where
/// each run begins, in the place of its length. The last run is closed by the size behind it, where there is room.
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
