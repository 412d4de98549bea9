// SPDX-License-Identifier: Apache-2.0

// Segmented sum on the GPU: for each unique key, the weighted sum of the values of its members' bags. It reduces the
// gradients of bags to gradients of rows (reduce(), update_bags()). A member of a unique key is one of its occurrences
// in the batch; each lies in a bag.
//
// Idea: the members of a unique key are a segment of all members. A short segment (at most kChunkMembers) is summed by
// the kernel that needs its sum (SegmentedSumView). A long one is summed beforehand, so that one frequent key does not
// keep a single thread busy. All members are cut into chunks of kChunkMembers; sum_parts_kernel sums the part of a long
// segment in each chunk; then the parts are added in order. Segments over at most kWindow + 1 chunks take one thread
// per column (sum_short_segments_kernel); longer ones take one block (sum_long_segments_kernel), in kPieces pieces.
//
// Example: chunks of 4, unique keys of the members 0 0 1 2 | 2 2 2 2 | 2 3. Only segment 2 is long, with 6 members:
//   tail of chunk 0 (1 member), head of chunk 1 (4), head of chunk 2 (1). Their sum goes to row sum(0).
//
// Invariants: a chunk has at most one long segment that comes from before (head), and at most one that begins in it and
//   goes on beyond it (tail), so three rows per chunk are enough (ChunkRows).
//   Chunks, windows and pieces depend on positions alone, so results have the same bits in every run.
// Complexity: O(members * dim); 3 * dim floats of scratch memory per 64 members.
// Source: docs/design/cuda_tables.md, "Sums of gradients of keys with more than 64 members".

#include "cuda/deduplication/segmented_sum.cuh"
#include "cuda/deduplication/vector_rows.cuh"
#include "cuda/runtime/launch.cuh"
#include "headway/base/cuda_check.hpp"

namespace headway::embedding {

namespace {

/// Chunks per window. Segments that end more than kWindow chunks after their first one are summed by a block.
constexpr std::uint32_t kWindow = 32;
constexpr std::uint32_t kPieces = 32;           ///< Pieces into which a block divides such a segment.
constexpr std::uint32_t kPartialsInFlight = 8;  ///< Partial sums that a thread loads at a time.

struct BagArgs {
  std::int64_t const* offsets;
  std::uint32_t num_bags;
  std::uint32_t* bag_of;
  std::uint32_t num_keys;
};

// One thread per key: binary search for the last bag that begins at or before the key. With offsets 0 2 2 5, the bags
// of the keys are 0 0 2 2 2. Threads of a warp take nearly the same path.
__global__ void __launch_bounds__(kBlockThreads) find_bags_kernel(BagArgs args) {
  std::uint32_t const key = thread_index();
  if (key >= args.num_keys) return;
  std::uint32_t bag = 0, end = args.num_bags;
  while (end - bag > 1) {
    std::uint32_t const middle = bag + (end - bag) / 2;
    (__ldg(args.offsets + middle) <= key ? bag : end) = middle;
  }
  args.bag_of[key] = bag;
}

/// Finds the bag of each key of a batch.
/// @param offsets (bags + 1), device memory
/// @param bag_of (keys), device memory; output
void find_bags_async(std::span<std::int64_t const> offsets, std::span<std::uint32_t> bag_of, cudaStream_t stream) {
  if (bag_of.empty()) return;
  find_bags_kernel<<<num_blocks(bag_of.size()), kBlockThreads, 0, stream>>>(
      {.offsets = offsets.data(),
       .num_bags = static_cast<std::uint32_t>(offsets.size() - 1),
       .bag_of = bag_of.data(),
       .num_keys = static_cast<std::uint32_t>(bag_of.size())});
  base::check_launch("find_bags_kernel");
}

/// Arguments of the kernels for long segments.
template <class Vector>
struct Segments {
  MemberRows terms;
  VectorRows<Vector const> values;  ///< (bags)
  VectorRows<Vector> chunks;        ///< (chunks * ChunkRows::kCount)
};

// One thread per chunk and column sums the chunk's parts of long segments: that of its first member, and that of its
// last member.
template <class Vector>
__global__ void __launch_bounds__(kBlockThreads, 4) sum_parts_kernel(Segments<Vector> segments) {
  constexpr std::uint32_t kInFlight = 4;  // More need so many registers that only half as many warps are resident.
  auto const& unique = segments.terms.unique;
  std::uint32_t const column = column_of_thread(), chunk = row_of_thread(), begin = chunk * kChunkMembers;
  std::uint32_t const num_members = unique.num_known();
  if (column >= segments.chunks.num_vectors || begin >= num_members) return;
  std::uint32_t const end = min(begin + kChunkMembers, num_members);
  auto const sum_part = [&](std::uint32_t index) {
    // Short segments are summed by whoever needs the sum; only long ones have parts.
    std::uint32_t const segment_begin = unique.csr_offsets[index], segment_end = unique.csr_offsets[index + 1];
    if (segment_end - segment_begin <= kChunkMembers) return;
    Vector sum{};
    for_each_term<kInFlight, Vector>(
        max(segment_begin, begin), min(segment_end, end), segments.values, column,
        [&](std::uint32_t at) { return segments.terms.term(at); },
        [&](std::uint32_t /*at*/, Vector value, float weight) { add_weighted(sum, value, weight); });
    *segments.chunks.at(segment_begin < begin ? ChunkRows::head(chunk) : ChunkRows::tail(chunk), column) = sum;
  };
  std::uint32_t const first = unique.inverse_indices[unique.csr_indices[begin]];
  sum_part(first);
  if (unique.csr_offsets[first + 1] < end) sum_part(unique.inverse_indices[unique.csr_indices[end - 1]]);
}

/// First and last chunk of a segment.
struct ChunkRange {
  std::uint32_t first, last;
};

/// Chunks of the segment of the last member of `chunk`, which must not be the last chunk. If the segment is not long,
/// `first` and `last` are equal.
__device__ ChunkRange segment_at_end(UniqueView const& unique, std::uint32_t chunk) {
  std::uint32_t const index = unique.inverse_indices[unique.csr_indices[(chunk + 1) * kChunkMembers - 1]];
  std::uint32_t const begin = unique.csr_offsets[index], end = unique.csr_offsets[index + 1];
  std::uint32_t const first = begin / kChunkMembers;
  return {first, end - begin > kChunkMembers ? (end - 1) / kChunkMembers : first};
}

/// Sum of a segment's partial sums in chunks [begin, end). `first_chunk`: the chunk in which the segment begins.
template <class Vector>
__device__ Vector sum_partials(Segments<Vector> const& segments, std::uint32_t first_chunk, std::uint32_t begin,
                               std::uint32_t end, std::uint32_t column) {
  Vector sum{};
  for_each_term<kPartialsInFlight, Vector>(
      begin, end, {segments.chunks.data, segments.chunks.num_vectors}, column,
      [&](std::uint32_t chunk) -> Term {
        return {chunk == first_chunk ? ChunkRows::tail(chunk) : ChunkRows::head(chunk), 1};
      },
      [&](std::uint32_t /*chunk*/, Vector value, float weight) { add_weighted(sum, value, weight); });
  return sum;
}

// One thread per chunk and column sums the long segment that begins in the chunk, if it ends at most kWindow chunks
// later. In the example above, chunk 0: tail 0 + head 1 + head 2.
template <class Vector>
__global__ void __launch_bounds__(kBlockThreads) sum_short_segments_kernel(Segments<Vector> segments) {
  std::uint32_t const column = column_of_thread(), chunk = row_of_thread();
  std::uint32_t const num_members = segments.terms.unique.num_known();
  if (column >= segments.chunks.num_vectors || (chunk + 1) * kChunkMembers >= num_members) return;
  auto const [first, last] = segment_at_end(segments.terms.unique, chunk);
  if (first != chunk || last == chunk || last - first > kWindow) return;
  *segments.chunks.at(ChunkRows::sum(chunk), column) = sum_partials(segments, first, first, last + 1, column);
}

// One block per window and up to 32 columns sums the segment that begins in the window and is longer than
// sum_short_segments_kernel takes. There is at most one: that of the window's last member. Each row of threads sums one
// piece, and the first row adds the pieces.
template <class Vector>
__global__ void __launch_bounds__(32 * kPieces) sum_long_segments_kernel(Segments<Vector> segments) {
  std::uint32_t const column = column_of_thread(), window = blockIdx.x, piece = threadIdx.y;
  std::uint32_t const last_chunk = (window + 1) * kWindow - 1;
  if ((last_chunk + 1) * kChunkMembers >= segments.terms.unique.num_known()) return;
  auto const [first, last] = segment_at_end(segments.terms.unique, last_chunk);
  if (first / kWindow != window || last - first <= kWindow) return;

  __shared__ Vector sums[kPieces][32];
  bool const has_column = column < segments.chunks.num_vectors;
  std::uint32_t const end = last + 1, size = (end - first + kPieces - 1) / kPieces;
  std::uint32_t const piece_begin = min(first + piece * size, end);
  if (has_column) {
    sums[piece][threadIdx.x] = sum_partials(segments, first, piece_begin, min(piece_begin + size, end), column);
  }
  __syncthreads();
  if (piece > 0 || !has_column) return;
  Vector sum{};
  for (std::uint32_t i = 0; i < kPieces; ++i) add_weighted(sum, sums[i][threadIdx.x], 1);
  *segments.chunks.at(ChunkRows::sum(first), column) = sum;
}

template <class Vector>
void sum_long_async(Segments<Vector> const& segments, std::uint64_t num_chunks, cudaStream_t stream) {
  RowGrid const grid(num_chunks, segments.chunks.num_vectors);
  sum_parts_kernel<Vector><<<grid.blocks, grid.threads, 0, stream>>>(segments);
  base::check_launch("sum_parts_kernel");
  sum_short_segments_kernel<Vector><<<grid.blocks, grid.threads, 0, stream>>>(segments);
  base::check_launch("sum_short_segments_kernel");
  // A segment that begins in the last, incomplete window is shorter than a window.
  auto const num_windows = static_cast<unsigned>(num_chunks / kWindow);
  if (num_windows == 0) return;
  sum_long_segments_kernel<Vector>
      <<<dim3(num_windows, grid.blocks.y), dim3(grid.threads.x, kPieces), 0, stream>>>(segments);
  base::check_launch("sum_long_segments_kernel");
}

// The lanes of a row look up the segments of a group of keys (KeyGroups), then write their sums, kRows at a time. Sums
// of several terms come first, because each waits for its own loads. Single terms come last, so that their loads
// overlap.
__global__ void __launch_bounds__(kBlockThreads, 4)
    write_sums_kernel(__grid_constant__ SegmentedSumView const view, float* sums, KeyGroups groups) {
  constexpr std::uint32_t kRows = 4;
  using Segment = SegmentedSumView::Segment;
  __shared__ Segment found[kBlockThreads];
  std::uint32_t const dim = view.terms.dim, num_quads = (dim + 3) / 4, size = view.terms.unique.size();
  if (groups.is_warp_beyond(size)) return;
  std::uint32_t const lane = groups.lane(), first = groups.first_key();
  if (lane < groups.num_keys && first + lane < size) found[threadIdx.x] = view.segment(first + lane);
  __syncwarp();
  for (std::uint32_t key = 0; key < groups.num_keys && first + key < size; key += kRows) {
    Segment const* const segments = found + (threadIdx.x - lane) + key;
    std::uint32_t const num_rows = min(min(groups.num_keys - key, size - first - key), kRows);
    for (std::uint32_t quad = lane; quad < num_quads; quad += groups.lanes.count()) {
      Quad values[kRows];
#pragma unroll
      for (std::uint32_t r = 0; r < kRows; ++r) {
        if (r < num_rows && !segments[r].has_one_term()) values[r] = view.sum_of<kRows>(segments[r], quad);
      }
#pragma unroll
      for (std::uint32_t r = 0; r < kRows; ++r) {
        if (r < num_rows && segments[r].has_one_term()) values[r] = view.first_of(segments[r], quad);
      }
#pragma unroll
      for (std::uint32_t r = 0; r < kRows; ++r) {
        if (r >= num_rows) continue;
        if (segments[r].has_one_term()) segments[r].weigh(values[r]);
        write_quad(sums + std::uint64_t{first + key + r} * dim, quad, dim, values[r]);
      }
    }
  }
}

}  // namespace

SegmentedSum::SegmentedSum(UniqueView const& unique, std::size_t num_keys, Bags const& bags, std::size_t dim,
                           float const* values, cudaStream_t stream)
    : bag_of_(bags.offsets.empty() ? 0 : num_keys, stream),
      terms_{.unique = unique,
             .bag_of = bag_of_.data(),
             .weights = bags.weights.empty() ? nullptr : bags.weights.data(),
             .values = values,
             .dim = static_cast<std::uint32_t>(dim)} {
  if (!bags.offsets.empty()) find_bags_async(bags.offsets, bag_of_.span(), stream);
  // So few members cannot be a long segment: there are no chunk rows, and no kernel has to sum them.
  if (num_keys <= kChunkMembers) return;
  std::uint64_t const num_chunks = (num_keys + kChunkMembers - 1) / kChunkMembers;
  chunk_rows_ = DeviceBuffer<float>(num_chunks * ChunkRows::kCount * dim, stream);
  with_widest_vector(dim, {values}, [&]<class Vector>() {
    sum_long_async<Vector>(
        {.terms = terms_, .values = rows_of<Vector>(values, dim), .chunks = rows_of<Vector>(chunk_rows_.data(), dim)},
        num_chunks, stream);
  });
}

void write_sums_async(SegmentedSumView const& view, std::span<float> sums, cudaStream_t stream) {
  auto const most = static_cast<std::uint32_t>(sums.size() / view.terms.dim);
  if (most == 0) return;
  KeyGroups const groups((view.terms.dim + 3) / 4);
  write_sums_kernel<<<groups.blocks(most), kBlockThreads, 0, stream>>>(view, sums.data(), groups);
  base::check_launch("write_sums_kernel");
}

}  // namespace headway::embedding
