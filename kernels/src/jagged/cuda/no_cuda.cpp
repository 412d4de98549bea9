// SPDX-License-Identifier: Apache-2.0

// Definitions for builds without CUDA: every entry point refuses.

#include "headway/kernels/jagged_moves.hpp"
#include "headway/kernels/jagged_offsets.hpp"
#include "headway/kernels/jagged_sums.hpp"
#include "headway/kernels/run_lengths.hpp"

#include <stdexcept>

namespace headway::kernels {

namespace {

[[noreturn]] void refuse() {
  throw std::runtime_error(
      "this build of Headway has no jagged kernels for CUDA devices: nvcc was not found when it was built");
}

}  // namespace

void move_rows_async(JaggedMove const& /*move*/, std::span<MovedRows const> /*tensors*/, CudaStream /*stream*/) {
  refuse();
}

void reduce_samples_async(JaggedRows const& /*rows*/, SampleReduction /*reduction*/, void* /*out*/, void* /*scratch*/,
                          CudaStream /*stream*/) {
  refuse();
}

std::int64_t reduce_samples_scratch_bytes(JaggedRows const& /*rows*/) { refuse(); }

void add_dense_async(JaggedRows const& /*rows*/, void const* /*dense*/, std::int64_t /*max_length*/, void* /*out*/,
                     CudaStream /*stream*/) {
  refuse();
}

void sum_copies_async(CopiedItems const& /*items*/, std::span<CopiedRows const> /*tensors*/, CudaStream /*stream*/) {
  refuse();
}

void find_run_lengths_async(RunLengths const& /*runs*/, void* /*scratch*/, std::int64_t /*scratch_bytes*/,
                            CudaStream /*stream*/) {
  refuse();
}

std::int64_t run_lengths_scratch_bytes(RunLengths const& /*runs*/) { refuse(); }

void find_offsets_async(MovedLengths const& /*lengths*/, void* /*scratch*/, std::int64_t /*scratch_bytes*/,
                        CudaStream /*stream*/) {
  refuse();
}

std::int64_t find_offsets_scratch_bytes(MovedLengths const& /*lengths*/) { refuse(); }

void count_rows_async(SegmentGroups const& /*groups*/, CudaStream /*stream*/) { refuse(); }

}  // namespace headway::kernels
