// SPDX-License-Identifier: Apache-2.0

// Lists of positions, and rows at them: kernels of prioritized updates (prioritized_updates.cpp).
//
// Idea: mark_shared notes for each unique key on which sides of a limit it has positions, and then marks its positions.
// split lists positions by mark with cub::DeviceSelect, and counts them by segment. Marks below 0 are in neither list.
//
// Example: unique keys 0 1 0 of positions 0 1 2, and the limit 1. Key 0 has positions on both sides, so the marks are
// 1 0 1. split gives the positions 0 2, and 1; with segments of 1 and 2 positions, the counts are 1 1 and 0 1.
//
// Invariants: lists are ascending. Each mark and each row is written by one thread; notes are set by atomics, whose
//   order does not matter.
// Complexity: O(positions * width). split: two selections with CUB's scratch memory, and a launch per 64 segments.

#include "cuda/batch/batch_view.cuh"
#include "cuda/exchange/batch_kernels.hpp"
#include "cuda/exchange/for_each_piece.cuh"
#include "cuda/runtime/device_buffer.hpp"
#include "cuda/runtime/launch.cuh"
#include "cuda/runtime/quad.cuh"
#include "headway/base/cuda_check.hpp"

#include <cub/device/device_select.cuh>
#include <thrust/iterator/counting_iterator.h>

#include <algorithm>
#include <vector>

namespace headway::embedding {

namespace {

constexpr std::uint32_t kBelow = 1, kFrom = 2;  ///< Notes: the key has positions below the limit, and at or above it.

struct NoteSides {
  std::uint32_t const* inverse_indices;
  std::uint64_t limit;
  std::uint32_t* notes;

  __device__ void operator()(std::uint64_t i) const {
    atomicOr(notes + inverse_indices[i], i < limit ? kBelow : kFrom);
  }
};

struct MarkShared {
  std::uint32_t const* inverse_indices;
  std::uint32_t const* notes;
  float* marks;

  __device__ void operator()(std::uint64_t i) const {
    marks[i] = notes[inverse_indices[i]] == (kBelow | kFrom) ? 1 : 0;
  }
};

struct MarkAbsent {
  RowId const* rows;
  float* marks;

  __device__ void operator()(std::uint64_t i) const {
    if (rows[i] == RowId::kNone) marks[i] = 1;
  }
};

/// Is position i in the list?
struct IsListed {
  float const* marks;
  bool is_marked;  ///< The list of marks above 0; false: of those that are 0.

  __device__ bool operator()(std::uint32_t i) const { return is_marked ? marks[i] > 0 : marks[i] == 0; }
};

struct Segment {
  std::uint64_t begin, end;
  std::int64_t *marked, *others;  ///< Counts, which are 0 before.
};

struct CountMarks {
  float const* marks;

  __device__ void operator()(Segment const& segment, PieceThread thread) const {
    std::uint32_t num_marked = 0, num_others = 0;
    for (std::uint64_t i = segment.begin + thread.index; i < segment.end; i += thread.count) {
      num_marked += marks[i] > 0 ? 1 : 0;
      num_others += marks[i] == 0 ? 1 : 0;
    }
    if (num_marked > 0) add_to(segment.marked, num_marked);
    if (num_others > 0) add_to(segment.others, num_others);
  }
};

struct MoveQuad {
  std::uint32_t const* positions;
  std::uint32_t width;
  bool gathers;  ///< From the positions; false: to them.
  float const* from;
  float* to;

  __device__ void operator()(std::uint32_t row, std::uint32_t quad) const {
    std::uint64_t const position = positions[row];
    std::uint64_t const source = gathers ? position : row, target = gathers ? row : position;
    write_quad(to + target * width, quad, width, read_quad(from + source * width, quad, width));
  }
};

struct SelectKeyAt {
  KeysView keys;
  std::uint32_t const* positions;
  KeyColumns to;

  __device__ void operator()(std::uint64_t i) const {
    std::uint32_t const position = positions[i];
    auto const key = keys.key(position);
    to.ids[i] = key.id;
    to.tables[i] = key.table;
    to.counts[i] = keys.count(position);
  }
};

}  // namespace

void mark_shared_async(std::span<std::uint32_t const> inverse_indices, std::size_t limit, float* marks,
                       cudaStream_t stream) {
  if (inverse_indices.empty()) return;
  // The host does not know the number of unique keys, which is at most that of positions.
  DeviceBuffer<std::uint32_t> const notes(inverse_indices.size(), stream);
  base::check_cuda(cudaMemsetAsync(notes.data(), 0, inverse_indices.size_bytes(), stream), "cudaMemsetAsync");
  for_each_async(inverse_indices.size(),
                 NoteSides{.inverse_indices = inverse_indices.data(), .limit = limit, .notes = notes.data()}, stream,
                 "NoteSides");
  for_each_async(inverse_indices.size(),
                 MarkShared{.inverse_indices = inverse_indices.data(), .notes = notes.data(), .marks = marks}, stream,
                 "MarkShared");
}

void mark_absent_async(std::span<RowId const> rows, float* marks, cudaStream_t stream) {
  for_each_async(rows.size(), MarkAbsent{.rows = rows.data(), .marks = marks}, stream, "MarkAbsent");
}

void split_async(std::span<float const> marks, std::span<std::size_t const> sizes, SplitPositions const& to,
                 cudaStream_t stream) {
  base::check_cuda(cudaMemsetAsync(to.counts.data(), 0, to.counts.span.size_bytes(), stream), "cudaMemsetAsync");
  if (marks.empty()) return;
  auto const num_positions = static_cast<std::uint32_t>(marks.size());
  DeviceBuffer<std::uint32_t> const num_listed(1, stream);  // CUB wants it; segments are counted below.
  for (bool const is_marked : {true, false}) {
    run_with_scratch("cub::DeviceSelect", stream, [&](void* scratch, std::size_t& num_bytes) {
      return cub::DeviceSelect::If(scratch, num_bytes, thrust::make_counting_iterator(std::uint32_t{0}),
                                   (is_marked ? to.marked : to.others).data(), num_listed.data(), num_positions,
                                   IsListed{.marks = marks.data(), .is_marked = is_marked}, stream);
    });
  }
  std::vector<Segment> segments;
  std::uint64_t begin = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    segments.push_back({.begin = begin,
                        .end = begin + sizes[i],
                        .marked = to.counts.data() + i,
                        .others = to.counts.data() + sizes.size() + i});
    begin += sizes[i];
  }
  auto const threads_of = [](Segment const& segment) {
    return (segment.end - segment.begin + kUnitsPerThread - 1) / kUnitsPerThread;
  };
  for_each_piece_async(std::span<Segment const>(segments), threads_of, CountMarks{.marks = marks.data()}, stream,
                       "CountMarks");
}

void move_rows_async(std::span<float const> from, std::size_t width, std::span<std::uint32_t const> positions,
                     bool gathers, float* to, cudaStream_t stream) {
  auto const columns = static_cast<std::uint32_t>(width);
  for_each_quad_async(
      positions.size(), (columns + 3) / 4,
      MoveQuad{.positions = positions.data(), .width = columns, .gathers = gathers, .from = from.data(), .to = to},
      stream, "MoveQuad");
}

void select_keys_async(Keys const& keys, std::span<std::uint32_t const> positions, KeyColumns const& to,
                       cudaStream_t stream) {
  for_each_async(positions.size(), SelectKeyAt{.keys = view_of(keys), .positions = positions.data(), .to = to}, stream,
                 "SelectKeyAt");
}

}  // namespace headway::embedding
