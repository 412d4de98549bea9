// SPDX-License-Identifier: Apache-2.0

// Launches over many pieces of memory of different sizes, such as the blocks of all ranks.
//
// A launch carries up to kMaxPieces pieces by value in its parameters, so that no list of pieces has to be copied to
// the device first. blockIdx.y is the piece. The threads of all blocks with one blockIdx.y share its work in strides.
// Example: 200 pieces take 4 launches, of 64, 64, 64 and 8 pieces. If the largest piece of a launch wants 1,000
// threads, the grid is (4, 64), and a piece that wants 10 has idle threads that return at once.

#pragma once

#include "cuda/runtime/launch.cuh"
#include "headway/base/cuda_check.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace headway::embedding {

inline constexpr std::size_t kMaxPieces = 64;
/// Most blocks per piece: with 4 units of 16 bytes per thread, a single large piece keeps a GPU's memory busy.
inline constexpr std::uint32_t kMaxPieceBlocks = 256;

template <class Piece>
struct PieceBatch {
  static_assert(sizeof(Piece) * kMaxPieces < 4096, "more than the parameters of a kernel may have on all GPUs");
  Piece pieces[kMaxPieces];
};

/// Threads that share a piece, and the number of this one.
struct PieceThread {
  std::uint64_t index, count;
};

template <class Piece, class Visit>
__global__ void __launch_bounds__(kBlockThreads)
    for_each_piece_kernel(__grid_constant__ PieceBatch<Piece> const batch, __grid_constant__ Visit const visit) {
  visit(batch.pieces[blockIdx.y], PieceThread{.index = std::uint64_t{blockIdx.x} * kBlockThreads + threadIdx.x,
                                              .count = std::uint64_t{gridDim.x} * kBlockThreads});
}

/// Calls `visit(piece, thread)` on all threads of each piece.
/// @param threads_of (piece) -> number of threads that the piece can use; a piece with 0 is skipped
template <class Piece, class ThreadsOf, class Visit>
void for_each_piece_async(std::span<Piece const> pieces, ThreadsOf const& threads_of, Visit const& visit,
                          cudaStream_t stream, char const* name) {
  PieceBatch<Piece> batch{};
  std::uint32_t size = 0;
  std::uint64_t most_threads = 0;
  auto const launch = [&] {
    if (size == 0) return;
    auto const blocks = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(kMaxPieceBlocks, (most_threads + kBlockThreads - 1) / kBlockThreads));
    for_each_piece_kernel<<<dim3(blocks, size), kBlockThreads, 0, stream>>>(batch, visit);
    base::check_launch(name);
    size = 0;
    most_threads = 0;
  };
  for (auto const& piece : pieces) {
    std::uint64_t const num_threads = threads_of(piece);
    if (num_threads == 0) continue;
    batch.pieces[size++] = piece;
    most_threads = std::max(most_threads, num_threads);
    if (size == kMaxPieces) launch();
  }
  launch();
}

/// Bytes that one load may take from `from` to `to`: 16, 4 or 1.
[[nodiscard]] __host__ __device__ inline std::uint32_t unit_bytes_of(void const* to, void const* from) {
  auto const bits = reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from);
  if (bits % 16 == 0) return 16;
  return bits % 4 == 0 ? 4 : 1;
}

/// Units that a thread has in flight at once.
inline constexpr std::uint32_t kUnitsPerThread = 4;

template <class Unit>
__device__ void copy_units(std::byte* to, std::byte const* from, std::uint64_t num_units, PieceThread thread) {
  auto* const out = reinterpret_cast<Unit*>(to);
  auto const* const in = reinterpret_cast<Unit const*>(from);
  std::uint64_t i = thread.index;
  for (; i + (kUnitsPerThread - 1) * thread.count < num_units; i += kUnitsPerThread * thread.count) {
    Unit units[kUnitsPerThread];
#pragma unroll
    for (std::uint32_t j = 0; j < kUnitsPerThread; ++j) units[j] = in[i + j * thread.count];
#pragma unroll
    for (std::uint32_t j = 0; j < kUnitsPerThread; ++j) out[i + j * thread.count] = units[j];
  }
  for (; i < num_units; i += thread.count) out[i] = in[i];
}

/// Copies by the widest units that both addresses allow, and the rest of less than one unit byte by byte.
__device__ inline void copy_bytes(void* to, void const* from, std::uint64_t num_bytes, PieceThread thread) {
  auto* const out = static_cast<std::byte*>(to);
  auto const* const in = static_cast<std::byte const*>(from);
  std::uint32_t const unit_bytes = unit_bytes_of(to, from);
  std::uint64_t const num_units = num_bytes / unit_bytes;
  if (unit_bytes == 16) {
    copy_units<uint4>(out, in, num_units, thread);
  } else if (unit_bytes == 4) {
    copy_units<std::uint32_t>(out, in, num_units, thread);
  } else {
    copy_units<std::byte>(out, in, num_units, thread);
  }
  std::uint64_t const done = num_units * unit_bytes;
  copy_units<std::byte>(out + done, in + done, num_bytes - done, thread);
}

}  // namespace headway::embedding
