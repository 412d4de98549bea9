// SPDX-License-Identifier: Apache-2.0

// Reads of a table on the GPU: find(), gather() and gather_bags(). None of them changes the table. A key without a
// row gets its initial embedding, so that it has the same embedding before and after its insertion.
//
// Idea: rows lie anywhere in memory, so a gather is bound by the latency of random reads. Two measures hide it: lanes
// share a row, each with 4 columns (one 16-byte load, a quad), so that a row is read in one or two transactions; and
// a thread has several rows in flight before it uses the first (kRows).
//
// Example: dim 64 has 16 quads, so a warp handles two rows side by side (RowLanes). gather_kernel gives each half four
//  rows: 8 loads of 256 bytes are in flight per warp. dim 100 has 25 quads: 32 lanes per row, of which 7 are idle.
//
// Invariants: row ids come from the caller. RowLimits checks each, and reads of a bad one become reads of kNone.
//  Sums of a bag add its keys in batch order, so they do not depend on the grid.
// Complexity: dim / 4 loads per row; a bag of n keys is n rows. Nothing is written but `out`.

#include "cuda/batch/bag_range.cuh"
#include "cuda/rows/free_rows.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/table/cuda_table.hpp"
#include "expect_batch.hpp"
#include "headway/base/status.hpp"

namespace headway::embedding {

void CudaTable::find(Keys const& keys, std::span<RowId> rows, std::span<KeyStatus> statuses) const {
  expect_one_each(keys, rows.size(), "rows");
  expect_one_each(keys, statuses.empty() ? keys.size() : statuses.size(), "statuses");
  Call const call(*this);
  for_each_async(
      keys.size(),
      [batch = view_of(keys), index = index(), is_expired = expiry(), table_rows = rows_.view(), rows = rows.data(),
       statuses = statuses.empty() ? nullptr : statuses.data()] __device__(std::uint64_t i) {
        // batch.size() may be read from device memory (num_known), so the grid covers all keys and the rest is set to
        // absent.
        bool const is_known = i < batch.size();
        RowId row = is_known ? row_of(find_word(index, batch.key(static_cast<std::uint32_t>(i)))) : RowId::kNone;
        if (is_expired.time_to_live > 0 && row != RowId::kNone && is_expired(table_rows.metadata(row).step)) {
          row = RowId::kNone;
        }
        rows[i] = row;
        if (statuses != nullptr) statuses[i] = row == RowId::kNone ? KeyStatus::kAbsent : KeyStatus::kFound;
      },
      call.stream(), "find");
}

namespace {

/// Arguments of gather_kernel; also part of those of gather_bags_kernel.
struct GatherArgs {
  RowsView rows;
  TableState* state;
  KeysView keys;
  RowId const* row_ids;
  InitialValues initial_values;
  std::uint32_t const*
      inverse_indices;  ///< (embeddings) Unique key of each embedding to copy; nullptr: embedding i is that of key i.
  std::uint32_t num_embeddings;
  float* out;  ///< (embeddings or bags, dim)

  [[nodiscard]] __device__ std::uint32_t size() const {
    return inverse_indices == nullptr ? keys.size() : num_embeddings;
  }
  [[nodiscard]] __device__ std::uint32_t unique_index(std::uint32_t i) const {
    return inverse_indices == nullptr ? i : inverse_indices[i];
  }
};

/// Four columns of a key's initial embedding. Not inlined, as kernels need it only for keys without a row.
__device__ __noinline__ Quad initial_quad(GatherArgs const& args, std::uint32_t index, std::uint32_t quad) {
  return args.initial_values.of(args.keys.key(index), quad);
}

// The lanes of a row copy four rows together; a thread issues all four loads before it stores. With dim 64, lanes 0 to
// 15 copy rows 0 to 3, and lanes 16 to 31 rows 4 to 7. Blocks go through the batch from its end: the rows that an
// insertion has written last are still in the cache.
__global__ void __launch_bounds__(kBlockThreads)
    gather_kernel(__grid_constant__ GatherArgs const args, RowLanes lanes) {
  constexpr std::uint32_t kRows = 4;
  std::uint64_t const thread = std::uint64_t{gridDim.x - 1 - blockIdx.x} * blockDim.x + threadIdx.x;
  std::uint32_t const lane = static_cast<std::uint32_t>(thread) & (lanes.count() - 1);
  auto const first = static_cast<std::uint32_t>(thread >> lanes.shift) * kRows, size = args.size();
  if (first >= size) return;
  RowLimits const limits(*args.state);
  RowId ids[kRows];
#pragma unroll
  for (std::uint32_t r = 0; r < kRows; ++r) {
    ids[r] = first + r < size ? limits.checked(args.row_ids[args.unique_index(first + r)], *args.state) : RowId::kNone;
  }
  for (std::uint32_t quad = lane; quad < args.rows.num_quads(); quad += lanes.count()) {
    Quad values[kRows];
#pragma unroll
    for (std::uint32_t r = 0; r < kRows; ++r) {
      if (ids[r] != RowId::kNone) values[r] = args.rows.read(ids[r], quad);
    }
#pragma unroll
    for (std::uint32_t r = 0; r < kRows; ++r) {
      if (first + r >= size) break;
      if (ids[r] == RowId::kNone) values[r] = initial_quad(args, args.unique_index(first + r), quad);
      write_quad(args.out + std::uint64_t{first + r} * args.rows.dim, quad, args.rows.dim, values[r]);
    }
  }
}

/// Arguments of gather_bags_kernel.
struct BagArgs {
  GatherArgs gather;
  std::int64_t const* offsets;  ///< nullptr: each key is a bag.
  float const* weights;         ///< nullptr: 1.
  std::uint32_t num_bags;
};

/// An embedding that one lane looked up for all lanes of a bag (shared memory).
struct FoundEmbedding {
  float const* hot;  ///< The embedding if it is float32, else nullptr.
  float weight;
  RowId id;
  std::uint32_t index;  ///< Unique key, for its initial embedding if `id` is kNone.
};

__device__ FoundEmbedding find_embedding(BagArgs const& args, RowLimits const& limits, std::uint32_t key) {
  auto const& gather = args.gather;
  std::uint32_t const index = gather.inverse_indices[key];
  RowId const id = limits.checked(gather.row_ids[index], *gather.state);
  bool const is_hot = id != RowId::kNone && precision_of(id) == Precision::kFloat32;
  return {.hot = is_hot ? gather.rows.embedding(id) : nullptr,
          .weight = args.weights == nullptr ? 1 : args.weights[key],
          .id = id,
          .index = index};
}

// The lanes of a row share a bag. Each lane looks up another key of the bag; then all read their columns of these rows,
// kRows at a time, and add them in order. With offsets 0 0 2 and inverse_indices 5 3, row 0 of `out` is zero, and row 1
// is the embedding of key 5 plus that of key 3.
__global__ void __launch_bounds__(kBlockThreads, 4)
    gather_bags_kernel(__grid_constant__ BagArgs const args, RowLanes lanes) {
  constexpr std::uint32_t kRows = 8;
  __shared__ FoundEmbedding all_found[kBlockThreads];
  auto const& gather = args.gather;
  std::uint64_t const thread = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  std::uint32_t const lane = static_cast<std::uint32_t>(thread) & (lanes.count() - 1);
  std::uint64_t const bag = thread >> lanes.shift;
  if (bag >= args.num_bags) return;
  FoundEmbedding* const found = all_found + (threadIdx.x - lane);
  RowLimits const limits(*gather.state);
  std::uint32_t const num_quads = gather.rows.num_quads(), dim = gather.rows.dim;
  auto const [begin, end] = bag_range(args.offsets, bag, gather.num_embeddings);
  // Wide embeddings take several rounds over the bag, each with one quad of columns per lane.
  for (std::uint32_t first_quad = 0; first_quad < num_quads; first_quad += lanes.count()) {
    std::uint32_t const quad = first_quad + lane;
    Quad sum{};
    for (std::uint32_t first = begin; first < end; first += lanes.count()) {
      std::uint32_t const num_keys = min(lanes.count(), end - first);
      __syncwarp(lanes.mask());
      // All lanes of the bag have read the last group of `found` (the barrier above), so it may be overwritten.
      if (lane < num_keys) found[lane] = find_embedding(args, limits, first + lane);
      bool const have_rows = __all_sync(lanes.mask(), lane >= num_keys || found[lane].id != RowId::kNone);
      __syncwarp(lanes.mask());
      for (std::uint32_t key = 0; key < num_keys && quad < num_quads; key += kRows) {
        Quad values[kRows];
        if (!have_rows) {  // Initial embeddings come first, so that no load is pending during the function call.
#pragma unroll
          for (std::uint32_t r = 0; r < kRows; ++r) {
            if (key + r >= num_keys || found[key + r].id != RowId::kNone) continue;
            values[r] = initial_quad(gather, found[key + r].index, quad);
          }
        }
#pragma unroll
        for (std::uint32_t r = 0; r < kRows; ++r) {
          if (key + r >= num_keys) break;
          if (found[key + r].hot != nullptr) {
            values[r] = read_quad(found[key + r].hot, quad, dim, LoadConstant());
          } else if (found[key + r].id != RowId::kNone) {
            values[r] = gather.rows.read(found[key + r].id, quad);
          }
        }
#pragma unroll
        for (std::uint32_t r = 0; r < kRows; ++r) {
          if (key + r >= num_keys) break;
#pragma unroll
          for (std::uint32_t j = 0; j < 4; ++j) sum[j] += found[key + r].weight * values[r][j];
        }
      }
    }
    if (quad < num_quads) write_quad(gather.out + bag * dim, quad, dim, sum);
  }
}

void gather_async(GatherArgs const& args, cudaStream_t stream) {
  RowLanes const lanes(args.rows.num_quads());
  std::uint64_t const tiles = (std::uint64_t{args.num_embeddings} + 3) / 4;
  gather_kernel<<<num_blocks(tiles << lanes.shift), kBlockThreads, 0, stream>>>(args, lanes);
  base::check_launch("gather_kernel");
}

}  // namespace

void CudaTable::gather(Keys const& keys, std::span<RowId const> rows, std::span<float> out) const {
  expect_one_each(keys, rows.size(), "rows");
  expect_values(keys, out.size(), options_.dim, "out");
  Call const call(*this);
  if (keys.size() == 0) return;
  gather_async({.rows = rows_.view(),
                .state = state_.data(),
                .keys = view_of(keys),
                .row_ids = rows.data(),
                .initial_values = options_.initializer.values(),
                .inverse_indices = nullptr,
                .num_embeddings = static_cast<std::uint32_t>(keys.size()),
                .out = out.data()},
               call.stream());
}

void CudaTable::gather_bags(Keys const& keys, std::span<RowId const> rows,
                            std::span<std::uint32_t const> inverse_indices, Bags const& bags,
                            std::span<float> out) const {
  expect_one_each(keys, rows.size(), "rows");
  std::size_t const num_bags = count_bags(inverse_indices.size(), bags);
  base::expects(out.size() == num_bags * options_.dim, "out does not have a row for each bag");
  Call const call(*this);
  if (num_bags == 0) return;
  GatherArgs const args{.rows = rows_.view(),
                        .state = state_.data(),
                        .keys = view_of(keys),
                        .row_ids = rows.data(),
                        .initial_values = options_.initializer.values(),
                        .inverse_indices = inverse_indices.data(),
                        .num_embeddings = static_cast<std::uint32_t>(inverse_indices.size()),
                        .out = out.data()};
  if (bags.offsets.empty() && bags.weights.empty()) return gather_async(args, call.stream());
  RowLanes const lanes(args.rows.num_quads());
  gather_bags_kernel<<<num_blocks(std::uint64_t{num_bags} << lanes.shift), kBlockThreads, 0, call.stream()>>>(
      {.gather = args,
       .offsets = bags.offsets.empty() ? nullptr : bags.offsets.data(),
       .weights = bags.weights.empty() ? nullptr : bags.weights.data(),
       .num_bags = static_cast<std::uint32_t>(num_bags)},
      lanes);
  base::check_launch("gather_bags_kernel");
}

}  // namespace headway::embedding
