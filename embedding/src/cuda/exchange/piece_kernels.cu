// SPDX-License-Identifier: Apache-2.0

// Calls over many pieces of memory: copies within a device, the encoding of keys for an exchange, additions of sizes,
// columns to interleave; and small writes from the host.
//
// Example: keys (id 7, table 2, count 3) and (id 9, table 2, count 1) are the words 7, 2 + 3 * 2^32, 9, 2 + 2^32.
//
// Invariants: pieces of one call do not overlap, and are done in any order. Sizes may share a total.
// Complexity: one launch per 64 pieces, one per 256 values that the host writes.

#include "cuda/exchange/batch_kernels.hpp"
#include "cuda/exchange/for_each_piece.cuh"
#include "cuda/runtime/launch.cuh"
#include "headway/base/cuda_check.hpp"

#include <algorithm>
#include <vector>

namespace headway::embedding {

namespace {

struct CopyBytes {
  __device__ void operator()(CopyPiece const& piece, PieceThread thread) const {
    copy_bytes(piece.to, piece.from, piece.num_bytes, thread);
  }
};

/// EncodePiece without what encoding does not read.
struct EncodeView {
  std::uint64_t const* ids;
  std::uint32_t const* tables;  ///< nullptr: all keys are of `table`.
  std::uint32_t const* counts;
  std::uint64_t* words;
  std::uint32_t table, num_keys;

  explicit EncodeView(EncodePiece const& piece)
      : ids(piece.keys.ids.data()),
        tables(piece.keys.tables.empty() ? nullptr : piece.keys.tables.data()),
        counts(piece.keys.counts.data()),
        words(piece.words),
        table(piece.keys.table),
        num_keys(static_cast<std::uint32_t>(piece.keys.size())) {}
  EncodeView() = default;
};

/// One thread per word, so that neighbouring threads write neighbouring words.
struct EncodeKeys {
  __device__ void operator()(EncodeView const& piece, PieceThread thread) const {
    std::uint64_t const num_words = std::uint64_t{2} * piece.num_keys;
    for (std::uint64_t word = thread.index; word < num_words; word += thread.count) {
      std::uint64_t const i = word / 2;
      piece.words[word] = word % 2 == 0 ? piece.ids[i]
                                        : (piece.tables == nullptr ? piece.table : piece.tables[i]) |
                                              std::uint64_t{piece.counts[i]} << 32;
    }
  }
};

/// One thread per key.
struct DecodeKeys {
  __device__ void operator()(DecodePiece const& piece, PieceThread thread) const {
    for (std::uint64_t i = thread.index; i < piece.num_keys; i += thread.count) {
      std::uint64_t const table_and_count = piece.words[2 * i + 1];
      piece.ids[i] = piece.words[2 * i];
      piece.tables[i] = static_cast<std::uint32_t>(table_and_count);
      piece.counts[i] = static_cast<std::uint32_t>(table_and_count >> 32);
    }
  }
};

/// One addition. 64-bit atomics let several terms have one total.
struct AddSize {
  __device__ void operator()(SizeTerm const& term, PieceThread thread) const {
    if (thread.index == 0) add_to(term.total, *term.size);
  }
};

struct Column {
  std::int64_t const* numbers;
  std::size_t index;
};

/// One thread per number of a column.
struct InterleaveColumn {
  std::size_t size, num_columns;
  std::int64_t* out;

  __device__ void operator()(Column const& column, PieceThread thread) const {
    for (std::uint64_t i = thread.index; i < size; i += thread.count) {
      out[i * num_columns + column.index] = column.numbers[i];
    }
  }
};

/// Values that a launch carries in its parameters.
struct CarriedValues {
  static constexpr std::size_t kMost = kBlockThreads;
  float values[kMost];
};

// One thread per value.
__global__ void __launch_bounds__(kBlockThreads)
    write_values_kernel(__grid_constant__ CarriedValues const from, std::uint32_t size, float* to) {
  if (threadIdx.x < size) to[threadIdx.x] = from.values[threadIdx.x];
}

}  // namespace

void copy_async(std::span<CopyPiece const> pieces, cudaStream_t stream) {
  auto const has_bytes = [](CopyPiece const& piece) { return piece.num_bytes > 0; };
  if (std::ranges::count_if(pieces, has_bytes) == 1) {
    auto const& piece = *std::ranges::find_if(pieces, has_bytes);
    base::check_cuda(cudaMemcpyAsync(piece.to, piece.from, piece.num_bytes, cudaMemcpyDeviceToDevice, stream),
                     "cudaMemcpyAsync");
    return;
  }
  auto const threads_of = [](CopyPiece const& piece) -> std::uint64_t {
    std::uint64_t const bytes_per_thread = std::uint64_t{unit_bytes_of(piece.to, piece.from)} * kUnitsPerThread;
    return (piece.num_bytes + bytes_per_thread - 1) / bytes_per_thread;
  };
  for_each_piece_async(pieces, threads_of, CopyBytes{}, stream, "CopyBytes");
}

void encode_async(std::span<EncodePiece const> pieces, cudaStream_t stream) {
  std::vector<EncodeView> const views(pieces.begin(), pieces.end());
  auto const threads_of = [](EncodeView const& piece) { return std::uint64_t{2} * piece.num_keys; };
  for_each_piece_async(std::span(views), threads_of, EncodeKeys{}, stream, "EncodeKeys");
}

void decode_async(std::span<DecodePiece const> pieces, cudaStream_t stream) {
  auto const threads_of = [](DecodePiece const& piece) { return std::uint64_t{piece.num_keys}; };
  for_each_piece_async(pieces, threads_of, DecodeKeys{}, stream, "DecodeKeys");
}

void add_sizes_async(std::span<SizeTerm const> terms, cudaStream_t stream) {
  auto const threads_of = [](SizeTerm const& /*term*/) { return std::uint64_t{1}; };
  for_each_piece_async(terms, threads_of, AddSize{}, stream, "AddSize");
}

void interleave_async(std::span<std::int64_t const* const> columns, std::size_t size, std::int64_t* out,
                      cudaStream_t stream) {
  std::vector<Column> pieces;
  pieces.reserve(columns.size());
  for (auto const* const column : columns) pieces.push_back({.numbers = column, .index = pieces.size()});
  auto const threads_of = [size](Column const& /*column*/) { return std::uint64_t{size}; };
  for_each_piece_async(std::span<Column const>(pieces), threads_of,
                       InterleaveColumn{.size = size, .num_columns = columns.size(), .out = out}, stream,
                       "InterleaveColumn");
}

void write_async(std::span<float const> on_host, float* to, cudaStream_t stream) {
  // A copy from pageable memory could wait for the stream. The parameters of a kernel are copied by its launch.
  for (std::size_t first = 0; first < on_host.size(); first += CarriedValues::kMost) {
    auto const part = on_host.subspan(first, std::min(CarriedValues::kMost, on_host.size() - first));
    CarriedValues carried{};
    std::ranges::copy(part, carried.values);
    write_values_kernel<<<1, kBlockThreads, 0, stream>>>(carried, static_cast<std::uint32_t>(part.size()), to + first);
    base::check_launch("write_values_kernel");
  }
}

}  // namespace headway::embedding
