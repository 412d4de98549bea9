#include "cuda/cuda_check.hpp"
#include "cuda/device_buffer.hpp"
#include "cuda/launch.cuh"
#include "cuda/segmented_sum.hpp"
#include "cuda/unique_view.cuh"
#include "cuda/vector_rows.cuh"

namespace headway::embedding {

namespace {

constexpr std::uint32_t kChunk = 64;   ///< Members that one thread adds up, in each column.
constexpr std::uint32_t kWindow = 32;  ///< Chunks. Segments of more are added up by a block.
constexpr std::uint32_t kPieces = 32;  ///< What a block divides them into.
constexpr std::uint32_t kInFlight = 8;

/// The members of a unique key are a segment of all members. One that goes on beyond the end of a chunk has a partial
/// sum of each chunk that it is in: that of the chunk in which it begins is the chunk's tail, and those of others are
/// their heads.
template <class Vector>
struct Segments {
  UniqueView unique;
  std::uint32_t const* bag_of;
  float const* weights;
  VectorRows<Vector const> values;
  VectorRows<Vector> sums;
  VectorRows<Vector> partials;  ///< (chunks, 2) Heads and tails.

  [[nodiscard]] __device__ Term term(std::uint32_t at) const {
    std::uint32_t const key = unique.members[at];
    return {bag_of == nullptr ? key : bag_of[key], weights == nullptr ? 1 : weights[key]};
  }
  [[nodiscard]] static __device__ std::uint32_t head(std::uint32_t chunk) { return 2 * chunk; }
  [[nodiscard]] static __device__ std::uint32_t tail(std::uint32_t chunk) { return 2 * chunk + 1; }
};

// A thread for a column of a chunk. Were chunks of 4 members, the numbers 0 0 1 2  2 2 2 2  2 3 would give: sums[0],
// sums[1] and tail 0; head 1; head 2 and sums[3].
template <class Vector>
__global__ void __launch_bounds__(kBlockThreads) sum_chunks_kernel(Segments<Vector> segments) {
  auto const& unique = segments.unique;
  std::uint32_t const column = column_of_thread(), chunk = row_of_thread(), begin = chunk * kChunk;
  std::uint32_t const num_members = unique.num_known();
  if (column >= segments.sums.num_vectors || begin >= num_members) return;
  std::uint32_t const end = min(begin + kChunk, num_members);
  std::uint32_t number = unique.numbers[unique.members[begin]];
  std::uint32_t segment_begin = unique.begins[number], segment_end = unique.begins[number + 1];
  Vector sum{};
  auto const write = [&] {
    if (segment_begin < begin) {
      *segments.partials.at(segments.head(chunk), column) = sum;
    } else if (segment_end > end) {
      *segments.partials.at(segments.tail(chunk), column) = sum;
    } else {
      *segments.sums.at(number, column) = sum;
    }
  };
  for_each_term<kInFlight, Vector>(
      begin, end, segments.values, column, [&](std::uint32_t at) { return segments.term(at); },
      [&](std::uint32_t at, Vector value, float weight) {
        if (at == segment_end) {
          write();
          segment_begin = segment_end;
          segment_end = unique.begins[++number + 1];
          sum = {};
        }
        add_weighted(sum, value, weight);
      });
  write();
}

/// A segment by its chunks.
struct ChunkRange {
  std::uint32_t number, first, last;
};

/// Where the last member of a chunk belongs to, after which there are others.
__device__ ChunkRange segment_at_end(UniqueView const& unique, std::uint32_t chunk) {
  std::uint32_t const number = unique.numbers[unique.members[(chunk + 1) * kChunk - 1]];
  return {number, unique.begins[number] / kChunk, (unique.begins[number + 1] - 1) / kChunk};
}

/// The sum of the partial sums of a segment in chunks from `begin` to `end`.
template <class Vector>
__device__ Vector sum_partials(Segments<Vector> const& segments, std::uint32_t first_chunk, std::uint32_t begin,
                               std::uint32_t end, std::uint32_t column) {
  Vector sum{};
  for_each_term<kInFlight, Vector>(
      begin, end, {segments.partials.data, segments.partials.num_vectors}, column,
      [&](std::uint32_t chunk) -> Term {
        return {chunk == first_chunk ? segments.tail(chunk) : segments.head(chunk), 1};
      },
      [&](std::uint32_t /*chunk*/, Vector value, float weight) { add_weighted(sum, value, weight); });
  return sum;
}

// A thread for a column of a chunk adds up the segment that begins in it and goes on to other chunks, no more of them
// than a window. Of the example above, chunk 0: sums[2] = tail 0 + head 1 + head 2.
template <class Vector>
__global__ void __launch_bounds__(kBlockThreads) sum_short_segments_kernel(Segments<Vector> segments) {
  std::uint32_t const column = column_of_thread(), chunk = row_of_thread();
  std::uint32_t const num_members = segments.unique.num_known();
  if (column >= segments.sums.num_vectors || (chunk + 1) * kChunk >= num_members) return;
  auto const [number, first, last] = segment_at_end(segments.unique, chunk);
  if (first != chunk || last == chunk || last - first > kWindow) return;
  *segments.sums.at(number, column) = sum_partials(segments, first, first, last + 1, column);
}

// A block for a column of a window of chunks adds up the segment that begins in it and goes on for longer: it is that
// of the window's last member. Each row of threads adds up a piece of it, and the first adds up the pieces.
template <class Vector>
__global__ void __launch_bounds__(32 * kPieces) sum_long_segments_kernel(Segments<Vector> segments) {
  std::uint32_t const column = column_of_thread(), window = blockIdx.x, piece = threadIdx.y;
  std::uint32_t const last_chunk = (window + 1) * kWindow - 1;
  if ((last_chunk + 1) * kChunk >= segments.unique.num_known()) return;
  auto const [number, first, last] = segment_at_end(segments.unique, last_chunk);
  if (first / kWindow != window || last - first <= kWindow) return;

  __shared__ Vector sums[kPieces][32];
  bool const has_column = column < segments.sums.num_vectors;
  std::uint32_t const end = last + 1, size = (end - first + kPieces - 1) / kPieces;
  std::uint32_t const piece_begin = min(first + piece * size, end);
  if (has_column) {
    sums[piece][threadIdx.x] = sum_partials(segments, first, piece_begin, min(piece_begin + size, end), column);
  }
  __syncthreads();
  if (piece > 0 || !has_column) return;
  Vector sum{};
  for (std::uint32_t i = 0; i < kPieces; ++i) add_weighted(sum, sums[i][threadIdx.x], 1);
  *segments.sums.at(number, column) = sum;
}

template <class Vector>
void sum_segments_async(Segments<Vector> const& segments, std::uint64_t num_chunks, cudaStream_t stream) {
  RowGrid const grid(num_chunks, segments.sums.num_vectors);
  sum_chunks_kernel<Vector><<<grid.blocks, grid.threads, 0, stream>>>(segments);
  check_launch("sum_chunks_kernel");
  if (num_chunks == 1) return;
  sum_short_segments_kernel<Vector><<<grid.blocks, grid.threads, 0, stream>>>(segments);
  check_launch("sum_short_segments_kernel");
  auto const num_windows = static_cast<unsigned>(num_chunks / kWindow);  // What is in the last chunks is not longer.
  if (num_windows == 0) return;
  sum_long_segments_kernel<Vector>
      <<<dim3(num_windows, grid.blocks.y), dim3(grid.threads.x, kPieces), 0, stream>>>(segments);
  check_launch("sum_long_segments_kernel");
}

}  // namespace

void sum_members_async(SegmentedSumArgs const& args, cudaStream_t stream) {
  std::uint64_t const num_chunks = (args.unique.members.size() + kChunk - 1) / kChunk;
  if (num_chunks == 0) return;
  DeviceBuffer<float> const partials(num_chunks > 1 ? num_chunks * 2 * args.dim : 0, stream);
  with_widest_vector(args.dim, {args.values, args.sums}, [&]<class Vector>() {
    sum_segments_async<Vector>({.unique = UniqueView(args.unique),
                                .bag_of = args.bag_of,
                                .weights = args.weights,
                                .values = rows_of<Vector>(args.values, args.dim),
                                .sums = rows_of<Vector>(args.sums, args.dim),
                                .partials = rows_of<Vector>(partials.data(), args.dim)},
                               num_chunks, stream);
  });
}

}  // namespace headway::embedding
