// SPDX-License-Identifier: Apache-2.0

// Bag sums on the GPU: expands values of unique keys to bags (expand()). Its gradient is segmented_sum.cu.
//
// Idea: out[bag] = sum over the bag's batch positions of weight * values[inverse_indices[position]]. One thread per bag
// and column adds its terms in order. A thread loads kInFlight rows before it uses the first one, so that the loads
// overlap. If each key is a bag and there are no weights, nothing is added: copy_rows_kernel copies rows.
//
// Example: offsets 0 0 2, inverse_indices 5 3, no weights. Row 0 of `out` is zero, row 1 is values[5] + values[3].
//
// Invariants: terms are added in batch order, so results have the same bits in every run. Positions of keys beyond
//   Keys::num_known contribute nothing.
// Complexity: one row read per key and one row written per bag, in vectors of 16 bytes if rows are aligned.

#include "cuda/batch/bag_range.cuh"
#include "cuda/deduplication/steps.hpp"
#include "cuda/deduplication/unique_view.cuh"
#include "cuda/deduplication/vector_rows.cuh"
#include "cuda/runtime/launch.cuh"
#include "headway/base/cuda_check.hpp"

namespace headway::embedding {

namespace {

constexpr std::uint32_t kInFlight = 4;  ///< Rows that a thread loads at a time.

template <class Vector>
struct CopyArgs {
  UniqueView unique;
  VectorRows<Vector const> values;
  VectorRows<Vector> out;
};

// One thread per column of four keys, blockDim.y rows apart. With blockDim.y = 2, the first row of threads of block 0
// copies to rows 0 2 4 6 of `out`, and the second one to rows 1 3 5 7.
template <class Vector>
__global__ void __launch_bounds__(kBlockThreads) copy_rows_kernel(CopyArgs<Vector> args) {
  std::uint32_t const column = column_of_thread(), num_known = args.unique.num_known();
  std::uint32_t const first = blockIdx.x * blockDim.y * kInFlight + threadIdx.y;
  if (column >= args.out.num_vectors || first >= num_known) return;
  std::uint32_t inverse_indices[kInFlight];
  Vector values[kInFlight];
  // Reads the last key again beyond the end: without a branch, no load waits for an earlier one.
#pragma unroll
  for (std::uint32_t i = 0; i < kInFlight; ++i) {
    inverse_indices[i] = args.unique.inverse_indices[min(first + i * blockDim.y, num_known - 1)];
  }
#pragma unroll
  for (std::uint32_t i = 0; i < kInFlight; ++i) values[i] = __ldg(args.values.at(inverse_indices[i], column));
#pragma unroll
  for (std::uint32_t i = 0; i < kInFlight; ++i) {
    // Streaming store: this kernel does not read `out`, so L2 stays free for the values.
    if (first + i * blockDim.y < num_known) __stcs(args.out.at(first + i * blockDim.y, column), values[i]);
  }
}

template <class Vector>
struct SumArgs {
  UniqueView unique;
  std::int64_t const* offsets;  ///< (bags + 1) nullptr: each key is a bag.
  std::uint32_t num_bags, num_keys;
  float const* weights;  ///< (keys) nullptr: 1.
  VectorRows<Vector const> values;
  VectorRows<Vector> out;
};

// One thread per bag and column.
template <class Vector>
__global__ void __launch_bounds__(kBlockThreads) sum_bags_kernel(SumArgs<Vector> args) {
  std::uint32_t const column = column_of_thread(), bag = row_of_thread();
  if (column >= args.out.num_vectors || bag >= args.num_bags) return;
  std::uint32_t const num_known = args.unique.num_known();
  auto const [begin, end] = bag_range(args.offsets, bag, args.num_keys);
  Vector sum{};
  for_each_term<kInFlight, Vector>(
      min(begin, num_known), min(end, num_known), args.values, column,
      [&](std::uint32_t key) -> Term {
        return {args.unique.inverse_indices[key], args.weights == nullptr ? 1 : args.weights[key]};
      },
      [&](std::uint32_t /*key*/, Vector value, float weight) { add_weighted(sum, value, weight); });
  __stcs(args.out.at(bag, column), sum);
}

}  // namespace

void sum_bags_async(CudaUniqueKeys const& unique, Bags const& bags, std::size_t dim, float const* values, float* out,
                    cudaStream_t stream) {
  bool const is_copy = bags.offsets.empty() && bags.weights.empty();
  auto const num_bags =
      static_cast<std::uint32_t>(bags.offsets.empty() ? unique.inverse_indices.size() : bags.offsets.size() - 1);
  if (num_bags == 0) return;
  with_widest_vector(dim, {values, out}, [&]<class Vector>() {
    auto const value_rows = rows_of<Vector>(values, dim);
    auto const out_rows = rows_of<Vector>(out, dim);
    RowGrid const grid(num_bags, out_rows.num_vectors, is_copy ? kInFlight : 1);
    if (is_copy) {
      copy_rows_kernel<Vector><<<grid.blocks, grid.threads, 0, stream>>>(
          {.unique = UniqueView(unique), .values = value_rows, .out = out_rows});
    } else {
      sum_bags_kernel<Vector><<<grid.blocks, grid.threads, 0, stream>>>(
          {.unique = UniqueView(unique),
           .offsets = bags.offsets.empty() ? nullptr : bags.offsets.data(),
           .num_bags = num_bags,
           .num_keys = static_cast<std::uint32_t>(unique.inverse_indices.size()),
           .weights = bags.weights.empty() ? nullptr : bags.weights.data(),
           .values = value_rows,
           .out = out_rows});
    }
    base::check_launch(is_copy ? "copy_rows_kernel" : "sum_bags_kernel");
  });
}

}  // namespace headway::embedding
