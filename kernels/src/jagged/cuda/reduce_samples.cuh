#pragma once

#include "elements.hpp"
#include "headway/kernels/jagged_sums.hpp"
#include "jagged/cuda/warp_rows.cuh"

namespace headway::kernels {

inline constexpr std::int64_t kRowsOfChunk = 32;

/// Sums of chunks of rows. Of a sample that lies in several chunks, each has a partial sum: the one where it begins at
/// its tail, all others at their heads.
///
/// Example: chunks of 4 rows, samples a a a b | b b b b | b c c: a is written at once; b = tail 0 + head 1 + head 2;
/// c is written at once.
template <class Element>
struct ReduceSamplesArgs {
  Segments samples;
  std::uint32_t num_samples;
  std::int64_t num_rows, num_columns, num_chunks;
  std::uint32_t num_lanes;  ///< Of threads for a chunk or sample: as many columns, or up to the next 2^n below a warp.
  SampleReduction reduction;
  Element const* values;  ///< (num_rows, num_columns)
  Element* out;           ///< (num_samples, num_columns)
  Real<Element>* heads;   ///< (num_chunks, num_columns)
  Real<Element>* tails;   ///< (num_chunks, num_columns)

  __device__ void store(std::uint32_t sample, Range rows, std::int64_t column, Real<Element> sum) const {
    bool const is_mean = reduction == SampleReduction::kMean && rows.size() > 0;
    Real<Element> const divisor = is_mean ? static_cast<Real<Element>>(rows.size()) : 1;
    out[sample * num_columns + column] = nearest<Element>(sum / divisor);
  }
};

/// Chunk or sample, and column, of a thread.
struct ReducedPlace {
  std::int64_t number, column;
};
template <class Element>
__device__ ReducedPlace reduced_place(ReduceSamplesArgs<Element> const& args) {
  std::int64_t const thread = std::int64_t{blockIdx.x} * (kWarp * kWarpsOfBlock) + threadIdx.x;
  std::int64_t const number = thread / args.num_lanes;
  return {number, thread - number * args.num_lanes};
}

/// A thread for a column of a chunk, so neighbouring threads read neighbouring columns.
template <class Element>
__global__ void __launch_bounds__(kWarp* kWarpsOfBlock)
    sum_chunks_kernel(__grid_constant__ ReduceSamplesArgs<Element> const args) {
  auto const [chunk, column] = reduced_place(args);
  if (chunk >= args.num_chunks || column >= args.num_columns) return;
  Range const all{chunk * kRowsOfChunk, min((chunk + 1) * kRowsOfChunk, args.num_rows)};
  std::uint32_t sample = args.samples.segment_of(all.begin, 0, args.num_samples);
  for (std::int64_t row = all.begin; row < all.end; ++sample) {
    expect_on_device(sample < args.num_samples, "lengths add up to the number of rows");
    Range const rows = args.samples.rows(sample);
    std::int64_t const end = min(rows.end, all.end);
    Real<Element> sum = 0;
#pragma unroll 8
    for (; row < end; ++row) sum += as_real(args.values[row * args.num_columns + column]);
    if (rows.begin < all.begin) {
      args.heads[chunk * args.num_columns + column] = sum;
    } else if (rows.end > all.end) {
      args.tails[chunk * args.num_columns + column] = sum;
    } else if (rows.size() > 0) {
      args.store(sample, rows, column, sum);
    }
  }
}

/// A thread for a column of a sample adds up the partial sums of those that lie in several chunks.
template <class Element>
__global__ void __launch_bounds__(kWarp* kWarpsOfBlock)
    join_chunks_kernel(__grid_constant__ ReduceSamplesArgs<Element> const args) {
  auto const [number, column] = reduced_place(args);
  if (number >= args.num_samples || column >= args.num_columns) return;
  auto const sample = static_cast<std::uint32_t>(number);
  Range const rows = args.samples.rows(sample);
  if (rows.size() == 0) return args.store(sample, rows, column, 0);
  std::int64_t const first = rows.begin / kRowsOfChunk, last = (rows.end - 1) / kRowsOfChunk;
  if (first == last) return;
  Real<Element> sum = args.tails[first * args.num_columns + column];
#pragma unroll 8
  for (std::int64_t chunk = first + 1; chunk <= last; ++chunk) sum += args.heads[chunk * args.num_columns + column];
  args.store(sample, rows, column, sum);
}

inline std::int64_t num_reduced_chunks(JaggedRows const& rows) {
  return (rows.num_rows + kRowsOfChunk - 1) / kRowsOfChunk;
}

template <class Element>
ReduceSamplesArgs<Element> reduce_samples_args(JaggedRows const& rows, SampleReduction reduction, void* out,
                                               void* scratch) {
  std::int64_t const num_chunks = num_reduced_chunks(rows);
  std::uint32_t num_lanes = 1;
  while (num_lanes < rows.num_columns && num_lanes < kWarp) num_lanes *= 2;
  auto* const partials = static_cast<Real<Element>*>(scratch);
  return {.samples = {.offsets = rows.offsets, .num_items = rows.num_samples},
          .num_samples = static_cast<std::uint32_t>(rows.num_samples),
          .num_rows = rows.num_rows,
          .num_columns = rows.num_columns,
          .num_chunks = num_chunks,
          .num_lanes = static_cast<std::uint32_t>((rows.num_columns + num_lanes - 1) / num_lanes) * num_lanes,
          .reduction = reduction,
          .values = static_cast<Element const*>(rows.values),
          .out = static_cast<Element*>(out),
          .heads = partials,
          .tails = partials + num_chunks * rows.num_columns};
}

}  // namespace headway::kernels
