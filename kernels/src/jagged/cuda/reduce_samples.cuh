// SPDX-License-Identifier: Apache-2.0
#pragma once

// Sums or means of jagged samples on a device, in two kernels.
//
// Idea: a sample takes one step for each of its rows and one step to end. Chunks of 2^chunk_bits steps are equal work,
// whether there are many empty samples or one long one. A thread adds up one column vector of a chunk. A sample inside
// one chunk is written at once. A sample over several chunks leaves partial sums: a tail in the chunk where it begins,
// heads in all others. The second kernel adds tail and heads in order.
//
// Example: chunks of 4 steps, "." ends a sample: a a a . | b b b b | b . c c | . Sample a is written at once, b = tail
// 1 + head 2, c = tail 2 + head 3, which is 0.
//
// Invariants: the order of additions is fixed by offsets alone, so results are bitwise reproducible. Sums are in
// float32 (float64 for float64).
// Complexity: each row is read once; scratch of two vectors per chunk and column.
// Source: Merrill and Garland, Merge-based sparse matrix-vector multiplication (SpMV), 2016.

#include "headway/kernels/jagged_sums.hpp"
#include "jagged/cuda/element_vector.cuh"
#include "jagged/cuda/warp_rows.cuh"

#include <algorithm>
#include <cstddef>

namespace headway::kernels {

/// Rows whose loads are in flight at once.
inline constexpr std::int32_t kRowsInFlight = 8;

/// Arguments of both kernels.
template <class Vector>
struct ReduceSamplesArgs {
  using Real = typename Vector::Sum;
  struct alignas(std::min<std::size_t>(16, sizeof(Real) * Vector::kNumElements)) Partial {
    Real sums[Vector::kNumElements];
  };

  std::int64_t const* offsets;  ///< (num_samples + 1)
  std::uint32_t num_samples;
  std::int64_t num_rows, num_chunks;
  int chunk_bits;  ///< A chunk has 2^chunk_bits steps.
  std::uint32_t vectors_of_row;
  /// Threads per chunk or sample: one per vector, rounded up to a power of two below a warp, or to whole warps.
  std::uint32_t num_lanes;
  SampleReduction reduction;
  Vector const* values;  ///< (num_rows, vectors_of_row)
  Vector* out;           ///< (num_samples, vectors_of_row)
  Partial* heads;        ///< (num_chunks, vectors_of_row): sums of samples that begin in earlier chunks.
  Partial* tails;  ///< (num_chunks, vectors_of_row): sums of samples that begin in the chunk and end in a later one.

  [[nodiscard]] __device__ std::int64_t num_steps() const { return num_rows + num_samples; }
  [[nodiscard]] __device__ std::int64_t chunk_of(std::int64_t step) const { return step >> chunk_bits; }
  [[nodiscard]] __device__ std::int64_t first_step(std::uint32_t sample) const { return offsets[sample] + sample; }

  /// Writes the sum or mean of a sample.
  __device__ void store(std::uint32_t sample, std::int64_t num_rows_of_sample, std::uint32_t column,
                        Partial sum) const {
    if (reduction == SampleReduction::kMean && num_rows_of_sample > 0) {
      for (Real& each : sum.sums) each /= static_cast<Real>(num_rows_of_sample);
    }
    out[std::int64_t{sample} * vectors_of_row + column] = Vector::nearest_to(sum.sums);
  }
};

/// Work of a thread: a chunk or sample, and a column.
struct ChunkCoord {
  std::int64_t index;
  std::uint32_t column;
};
template <class Vector>
__device__ ChunkCoord chunk_coord(ReduceSamplesArgs<Vector> const& args) {
  std::int64_t const thread = std::int64_t{blockIdx.x} * (kWarp * kWarpsOfBlock) + threadIdx.x;
  std::int64_t const index = thread / args.num_lanes;
  return {index, static_cast<std::uint32_t>(thread - index * args.num_lanes)};
}

/// Sample that contains a step. All lanes call it with steps that are not before that of lane 0.
template <class Vector>
__device__ std::uint32_t sample_of_step(ReduceSamplesArgs<Vector> const& args, std::int64_t step) {
  std::int64_t const first_step = __shfl_sync(kAllLanes, step, 0);
  std::uint32_t first =
      find_last(0, args.num_samples, [&](std::uint32_t i) { return args.first_step(i) <= first_step; });
  auto end = static_cast<std::uint32_t>(min(first + (step - first_step) + 1, std::int64_t{args.num_samples}));
  while (end - first > 1) {
    std::uint32_t const middle = first + (end - first) / 2;
    (args.first_step(middle) <= step ? first : end) = middle;
  }
  return first;
}

/// Sum of one column vector over the steps of a chunk.
template <class Vector>
class ChunkSum {
 public:
  __device__ ChunkSum(ReduceSamplesArgs<Vector> const& args, ChunkCoord const& coord, std::uint32_t sample)
      : args_(args),
        coord_(coord),
        step_(coord.index << args.chunk_bits),
        end_(min((coord.index + 1) << args.chunk_bits, args.num_steps())),
        sample_(sample),
        row_(step_ - sample),
        sample_begin_(args.offsets[sample]),
        sample_end_(args.offsets[sample + 1]),
        is_head_(sample_begin_ + sample < step_) {}

  __device__ void run() {
    while (step_ < end_) {
      expect_on_device(sample_begin_ <= row_ && row_ <= sample_end_ && sample_end_ <= args_.num_rows,
                       "lengths add up to the number of rows");
      add_rows(static_cast<std::int32_t>(min(end_ - step_, args_.num_rows - row_)));
    }
    if (is_head_) return keep(args_.heads);
    keep(args_.tails);  // Never read if the last sample ends with the chunk.
  }

 private:
  /// Adds up to `num_rows` rows from the present one on, and ends the samples among them.
  __device__ void add_rows(std::int32_t num_rows) {
    Vector values[kRowsInFlight];
#pragma unroll
    for (std::int32_t i = 0; i < kRowsInFlight; ++i) {
      if (i < num_rows) values[i] = args_.values[(row_ + i) * args_.vectors_of_row + coord_.column];
    }
#pragma unroll
    for (std::int32_t i = 0; i < kRowsInFlight; ++i) {
      while (step_ < end_ && row_ == sample_end_) end_sample();
      if (i >= num_rows || step_ == end_) return;
      values[i].add_to(sum_.sums);
      ++row_, ++step_;
    }
  }

  /// Ends the present sample: writes it, or keeps its head if it began in an earlier chunk.
  __device__ void end_sample() {
    if (is_head_) {
      keep(args_.heads);
    } else {
      args_.store(sample_, sample_end_ - sample_begin_, coord_.column, sum_);
    }
    ++sample_, ++step_;
    is_head_ = false;
    sum_ = {};
    if (step_ == end_) return;
    expect_on_device(sample_ < args_.num_samples, "lengths add up to the number of rows");
    sample_begin_ = sample_end_;
    sample_end_ = args_.offsets[sample_ + 1];
  }

  __device__ void keep(typename ReduceSamplesArgs<Vector>::Partial* partials) const {
    partials[coord_.index * args_.vectors_of_row + coord_.column] = sum_;
  }

  ReduceSamplesArgs<Vector> const& args_;
  ChunkCoord coord_;
  std::int64_t step_, end_;
  std::uint32_t sample_;
  std::int64_t row_, sample_begin_, sample_end_;
  bool is_head_;  ///< Did the present sample begin in an earlier chunk?
  typename ReduceSamplesArgs<Vector>::Partial sum_ = {};
};

/// First kernel: a thread per column vector of a chunk, so neighbouring threads read neighbouring vectors.
template <class Vector>
__global__ void __launch_bounds__(kWarp* kWarpsOfBlock)
    sum_chunks_kernel(__grid_constant__ ReduceSamplesArgs<Vector> const args) {
  auto const coord = chunk_coord(args);
  std::uint32_t const sample = sample_of_step(args, coord.index << args.chunk_bits);
  if (coord.index < args.num_chunks && coord.column < args.vectors_of_row) {
    ChunkSum<Vector>(args, coord, sample).run();
  }
}

/// Second kernel: a thread per column vector of a sample adds up the partial sums of samples over several chunks.
template <class Vector>
__global__ void __launch_bounds__(kWarp* kWarpsOfBlock)
    join_chunks_kernel(__grid_constant__ ReduceSamplesArgs<Vector> const args) {
  auto const [index, column] = chunk_coord(args);
  if (index >= args.num_samples || column >= args.vectors_of_row) return;
  auto const sample = static_cast<std::uint32_t>(index);
  Range const rows{args.offsets[sample], args.offsets[sample + 1]};
  std::int64_t const first = args.chunk_of(rows.begin + sample), last = args.chunk_of(rows.end + sample);
  if (first == last) return;
  expect_on_device(0 <= first && last < args.num_chunks, "lengths add up to the number of rows");
  auto sum = args.tails[first * args.vectors_of_row + column];
#pragma unroll 8
  for (std::int64_t chunk = first + 1; chunk <= last; ++chunk) {
    auto const head = args.heads[chunk * args.vectors_of_row + column];
#pragma unroll
    for (std::uint32_t i = 0; i < Vector::kNumElements; ++i) sum.sums[i] += head.sums[i];
  }
  args.store(sample, rows.size(), column, sum);
}

/// Size of chunks: small for many short samples, so that many threads share the work; large for long samples, so that
/// few chunks must be joined.
inline int reduced_chunk_bits(JaggedRows const& rows) { return rows.num_rows < 16 * rows.num_samples ? 4 : 6; }

inline std::int64_t num_reduced_chunks(JaggedRows const& rows) {
  return ((rows.num_rows + rows.num_samples - 1) >> reduced_chunk_bits(rows)) + 1;
}

template <class Vector>
ReduceSamplesArgs<Vector> reduce_samples_args(JaggedRows const& rows, SampleReduction reduction, void* out,
                                              void* scratch) {
  std::int64_t const num_chunks = num_reduced_chunks(rows);
  auto const vectors_of_row = static_cast<std::uint32_t>(rows.num_columns / Vector::kNumElements);
  std::uint32_t num_lanes = 1;
  while (num_lanes < vectors_of_row && num_lanes < kWarp) num_lanes *= 2;
  auto* const partials = static_cast<typename ReduceSamplesArgs<Vector>::Partial*>(scratch);
  return {.offsets = rows.offsets,
          .num_samples = static_cast<std::uint32_t>(rows.num_samples),
          .num_rows = rows.num_rows,
          .num_chunks = num_chunks,
          .chunk_bits = reduced_chunk_bits(rows),
          .vectors_of_row = vectors_of_row,
          .num_lanes = (vectors_of_row + num_lanes - 1) / num_lanes * num_lanes,
          .reduction = reduction,
          .values = static_cast<Vector const*>(rows.values),
          .out = static_cast<Vector*>(out),
          .heads = partials,
          .tails = partials + num_chunks * vectors_of_row};
}

}  // namespace headway::kernels
