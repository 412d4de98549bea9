// SPDX-License-Identifier: Apache-2.0

// Keys with values (a row of dim floats each): concatenates several batches, and selects the keys of one table.
//
// Idea of concatenate: known keys and their values come first in each piece, so a piece is copied as three contiguous
// arrays. Its offset is the number of known keys before it. A kernel of one block per 64 pieces adds these numbers up.
// Keys are known if they are below *Keys::num_known, a number that only the device has.
// Idea of select_table: cub::DeviceSelect lists the indices of the keys, in their order; two kernels then gather.
//
// Example: pieces of 3 and 2 keys, of which 2 and 2 are known. offsets 0 2 4. The result has room for 5 keys; the keys
// of the second piece are at positions 2 and 3, and position 4 is not set.
//
// Invariants: keys keep their order. The host does not learn how many keys the result has.
// Complexity: O(keys * dim). concatenate: two launches per 64 pieces. select_table: CUB's scratch memory, and 4 bytes
//   per key.

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

/// KeyValues for kernels.
struct ValuesPiece {
  std::uint64_t const* ids;
  std::uint32_t const* tables;  ///< nullptr: all keys are of `table`.
  float const* values;
  DeviceCount size;
  std::uint32_t table;
  std::uint32_t index;  ///< Index of the piece in the list.
  std::uint32_t first;  ///< Position of its first key in the result if there are no offsets on the device.
};

struct OffsetsArgs {
  PieceBatch<DeviceCount> sizes;
  std::uint32_t num_pieces;
  std::uint32_t first_piece;
  std::uint32_t* offsets;  ///< (all pieces + 1)
};

// One block of kMaxPieces threads. Sizes 2 2 after offsets[first_piece] = 5 give offsets 5 7 9.
__global__ void __launch_bounds__(kMaxPieces) find_piece_offsets_kernel(__grid_constant__ OffsetsArgs const args) {
  __shared__ std::uint32_t sizes[kMaxPieces];
  if (threadIdx.x < args.num_pieces) sizes[threadIdx.x] = args.sizes.pieces[threadIdx.x]();
  __syncthreads();
  if (threadIdx.x > 0) return;
  std::uint32_t* const offsets = args.offsets + args.first_piece;
  std::uint32_t offset = args.first_piece == 0 ? 0 : offsets[0];
  if (args.first_piece == 0) offsets[0] = 0;
  for (std::uint32_t i = 0; i < args.num_pieces; ++i) offsets[i + 1] = offset += sizes[i];
}

void find_piece_offsets_async(std::span<ValuesPiece const> pieces, std::uint32_t* offsets, cudaStream_t stream) {
  for (std::size_t first = 0; first < pieces.size(); first += kMaxPieces) {
    auto const part = pieces.subspan(first, std::min(kMaxPieces, pieces.size() - first));
    OffsetsArgs args{.sizes = {},
                     .num_pieces = static_cast<std::uint32_t>(part.size()),
                     .first_piece = static_cast<std::uint32_t>(first),
                     .offsets = offsets};
    std::ranges::transform(part, args.sizes.pieces, &ValuesPiece::size);
    find_piece_offsets_kernel<<<1, kMaxPieces, 0, stream>>>(args);
    base::check_launch("find_piece_offsets_kernel");
  }
}

/// Copies the known keys of a piece, and their values, to the result.
struct ConcatenateKeys {
  std::uint32_t const* offsets;  ///< (pieces + 1) nullptr: ValuesPiece::first.
  std::uint32_t dim;
  std::uint64_t* ids;
  std::uint32_t* tables;
  float* values;

  __device__ void operator()(ValuesPiece const& piece, PieceThread thread) const {
    std::uint32_t const first = offsets == nullptr ? piece.first : offsets[piece.index], size = piece.size();
    copy_bytes(values + std::uint64_t{first} * dim, piece.values, std::uint64_t{size} * dim * sizeof(float), thread);
    for (std::uint64_t i = thread.index; i < size; i += thread.count) {
      ids[first + i] = piece.ids[i];
      tables[first + i] = piece.tables == nullptr ? piece.table : piece.tables[i];
    }
  }
};

/// Is key i known and of the table?
struct IsOfTable {
  KeysView keys;
  std::uint32_t table;

  __device__ bool operator()(std::uint32_t i) const { return i < keys.size() && keys.key(i).table == table; }
};

/// Copies id and row of the key at place i of the selection.
struct SelectKey {
  std::uint32_t const* indices;
  DeviceCount size;
  std::uint64_t const* from_ids;
  RowId const* from_rows;
  std::uint32_t table;
  std::uint64_t* ids;
  std::uint32_t* tables;
  RowId* rows;

  __device__ void operator()(std::uint64_t i) const {
    if (i >= size()) return;
    std::uint32_t const index = indices[i];
    ids[i] = from_ids[index];
    tables[i] = table;
    rows[i] = from_rows[index];
  }
};

/// Copies four columns of the values of the key at place `row` of the selection.
struct SelectQuad {
  std::uint32_t const* indices;
  DeviceCount size;
  std::uint32_t dim;
  float const* from;
  float* to;

  __device__ void operator()(std::uint32_t row, std::uint32_t quad) const {
    if (row >= size()) return;
    write_quad(to + std::uint64_t{row} * dim, quad, dim,
               read_quad(from + std::uint64_t{indices[row]} * dim, quad, dim));
  }
};

// One block. Any number of flags.
__global__ void __launch_bounds__(kBlockThreads)
    count_if_any_kernel(DeviceCount num_keys, float const* flags, std::uint64_t num_flags, std::uint64_t stride,
                        std::uint32_t* result) {
  bool is_set = false;
  for (std::uint64_t i = threadIdx.x; i < num_flags; i += kBlockThreads) is_set |= flags[i * stride] != 0;
  bool const is_any_set = __syncthreads_or(static_cast<int>(is_set)) != 0;
  if (threadIdx.x == 0) *result = is_any_set ? num_keys() : 0;
}

}  // namespace

void concatenate_async(std::span<KeyValues const> pieces, std::size_t dim, KeyValueBlocks const& to,
                       std::uint32_t* offsets, cudaStream_t stream) {
  std::vector<ValuesPiece> views;
  views.reserve(pieces.size());
  std::uint32_t first = 0;
  for (auto const& piece : pieces) {
    auto const keys = view_of(piece.keys);
    views.push_back({.ids = keys.ids,
                     .tables = keys.tables,
                     .values = piece.values.data(),
                     .size = keys.size,
                     .table = keys.table,
                     .index = static_cast<std::uint32_t>(views.size()),
                     .first = first});
    first += keys.size.most;
  }
  if (offsets != nullptr) find_piece_offsets_async(views, offsets, stream);
  auto const width = static_cast<std::uint32_t>(dim);
  auto const threads_of = [width](ValuesPiece const& piece) {
    return std::uint64_t{piece.size.most} * std::max((width + kUnitsPerThread - 1) / kUnitsPerThread, 1U);
  };
  for_each_piece_async(std::span<ValuesPiece const>(views), threads_of,
                       ConcatenateKeys{.offsets = offsets,
                                       .dim = width,
                                       .ids = to.ids.data(),
                                       .tables = to.tables.data(),
                                       .values = to.values.data()},
                       stream, "ConcatenateKeys");
}

void select_table_async(KeyValues const& from, std::span<RowId const> rows, std::size_t dim, std::uint32_t table,
                        KeyValueBlocks const& to, cudaStream_t stream) {
  auto const keys = view_of(from.keys);
  std::uint32_t const num_keys = keys.size.most;
  if (num_keys == 0) {
    base::check_cuda(cudaMemsetAsync(to.size_on_device.data(), 0, sizeof(std::uint32_t), stream), "cudaMemsetAsync");
    return;
  }
  DeviceBuffer<std::uint32_t> const indices(num_keys, stream);
  run_with_scratch("cub::DeviceSelect", stream, [&](void* scratch, std::size_t& num_bytes) {
    return cub::DeviceSelect::If(scratch, num_bytes, thrust::make_counting_iterator(std::uint32_t{0}), indices.data(),
                                 to.size_on_device.data(), num_keys, IsOfTable{.keys = keys, .table = table}, stream);
  });
  DeviceCount const size{.most = num_keys, .known = to.size_on_device.data()};
  for_each_async(num_keys,
                 SelectKey{.indices = indices.data(),
                           .size = size,
                           .from_ids = keys.ids,
                           .from_rows = rows.data(),
                           .table = table,
                           .ids = to.ids.data(),
                           .tables = to.tables.data(),
                           .rows = to.rows.data()},
                 stream, "SelectKey");
  auto const width = static_cast<std::uint32_t>(dim);
  for_each_quad_async(
      num_keys, (width + 3) / 4,
      SelectQuad{
          .indices = indices.data(), .size = size, .dim = width, .from = from.values.data(), .to = to.values.data()},
      stream, "SelectQuad");
}

void count_if_any_async(Keys const& keys, std::span<float const> flags, std::size_t first, std::size_t stride,
                        std::uint32_t* result, cudaStream_t stream) {
  std::size_t const num_flags = first < flags.size() ? (flags.size() - first - 1) / stride + 1 : 0;
  count_if_any_kernel<<<1, kBlockThreads, 0, stream>>>(view_of(keys).size, flags.data() + first, num_flags, stride,
                                                       result);
  base::check_launch("count_if_any_kernel");
}

}  // namespace headway::embedding
