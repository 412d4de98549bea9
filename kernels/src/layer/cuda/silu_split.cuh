// SPDX-License-Identifier: Apache-2.0
#pragma once

// SiLU split on a device: splits the columns of rows into parts and applies SiLU to some of them; backward, it joins
// gradients and sums columns.
//
// Idea: a lane has one pack of columns (up to 16 bytes) for the whole kernel, so it finds its part once. Warps go down
// the rows in steps of the grid, with four rows in flight. Column sums of the backward pass therefore stay in
// registers; warps add theirs in shared memory, blocks in add_column_sums_kernel().
//
// Example: bfloat16, parts of 64, 64, 128 and 256 columns: 512 columns are two tiles of 32 packs of 8 columns. Lanes 0
// to 7 of the first tile write part 0.
//
// Invariants: a pack never spans two parts (is_in_packs()). Sums use values before rounding, in a fixed order.
// Complexity: each element is read once and written once.

#include "headway/kernels/silu_split.hpp"
#include "layer/cuda/element_pack.cuh"
#include "layer/cuda/silu.cuh"

#include <algorithm>

namespace headway::kernels {

inline constexpr int kSplitWarps = 8, kSplitBlocks = 3;  ///< Warps per block, and blocks per multiprocessor.
inline constexpr std::int64_t kRowsTogether = 4;         ///< Rows that a thread reads before it writes the first.

/// Parts of rows in the types of a kernel.
template <class Element>
struct SplitParts {
  struct Part {
    Element* data;
    std::int64_t stride, first_column;
    bool is_activated;
  };
  Part parts[kMaxSplitParts];
  int num_parts;
  std::int64_t num_columns;

  template <class Pointer>
  explicit SplitParts(std::span<SplitPart<Pointer> const> from)
      : num_parts(static_cast<int>(from.size())), num_columns(0) {
    Part* to = parts;
    for (auto const& part : from) {
      // The const_cast is safe: the backward pass only reads the parts.
      auto* const data = static_cast<Element*>(const_cast<void*>(static_cast<void const*>(part.rows.data)));
      *to++ = {data, part.rows.stride, num_columns, part.is_activated};
      num_columns += part.num_columns;
    }
  }

  /// Part that contains a column: the last one that begins at or before it. Parts without columns begin where the next
  /// one does, so they are never chosen.
  [[nodiscard]] __device__ Part part_of(std::int64_t column) const {
    Part found = parts[0];
#pragma unroll
    for (int i = 1; i < static_cast<int>(kMaxSplitParts); ++i) {
      if (i < num_parts && parts[i].first_column <= column) found = parts[i];
    }
    return found;
  }
};

/// Columns and rows of a thread. A warp has 32 packs of columns (blockIdx.x) and goes down the rows in steps of the
/// grid (blockIdx.y).
template <class Element, int kSize>
struct SplitCoord {
  using Pack = ElementPack<Element, kSize>;
  using Values = typename Pack::Values;

  std::int64_t column = (std::int64_t{blockIdx.x} * kWarpThreads + threadIdx.x % kWarpThreads) * kSize;
  std::int64_t first_row = std::int64_t{blockIdx.y} * kSplitWarps + threadIdx.x / kWarpThreads;
  std::int64_t step = std::int64_t{gridDim.y} * kSplitWarps;
};

/// Kernel arguments.
template <class Element>
struct SiluSplitParams {
  std::int64_t num_rows;
  StridedRows<Element const*> x;
  SplitParts<Element> parts;
};

/// Kernel: forward pass.
template <class Element, int kSize>
__global__ void __launch_bounds__(kSplitWarps* kWarpThreads, kSplitBlocks)
    silu_split_kernel(__grid_constant__ SiluSplitParams<Element> const args) {
  using Coord = SplitCoord<Element, kSize>;
  Coord const coord;
  if (coord.column >= args.parts.num_columns) return;
  auto const part = args.parts.part_of(coord.column);
  Element const* const x = args.x.data + coord.column;
  Element* const out = part.data + (coord.column - part.first_column);
  for (std::int64_t row = coord.first_row; row < args.num_rows; row += kRowsTogether * coord.step) {
    typename Coord::Pack packs[kRowsTogether];
#pragma unroll
    for (int i = 0; i < kRowsTogether; ++i) {
      std::int64_t const each = row + i * coord.step;
      if (each < args.num_rows) packs[i] = Coord::Pack::load(x + each * args.x.stride);
    }
#pragma unroll
    for (int i = 0; i < kRowsTogether; ++i) {
      std::int64_t const each = row + i * coord.step;
      if (each >= args.num_rows) break;
      if (part.is_activated) {
        typename Coord::Values values;
        packs[i].read(values);
#pragma unroll
        for (auto& value : values) value = Silu<Element>(value).value();
        packs[i] = Coord::Pack::of(values);
      }
      packs[i].store(out + each * part.stride);
    }
  }
}

/// Kernel arguments of the backward pass.
template <class Element>
struct SiluSplitBackwardParams {
  std::int64_t num_rows;
  StridedRows<Element const*> x;
  SplitParts<Element> grads;
  Element* grad_x;          ///< (num_rows, num_columns)
  Real<Element>* partials;  ///< (gridDim.y, num_columns)
};

/// Kernel: gradient of x, and one partial sum of columns per block.
template <class Element, int kSize>
__global__ void __launch_bounds__(kSplitWarps* kWarpThreads, kSplitBlocks)
    silu_split_backward_kernel(__grid_constant__ SiluSplitBackwardParams<Element> const args) {
  using Coord = SplitCoord<Element, kSize>;
  using Pack = typename Coord::Pack;
  Coord const coord;
  std::int64_t const num_columns = args.grads.num_columns;
  typename Coord::Values sums = {};
  if (coord.column < num_columns) {
    auto const part = args.grads.part_of(coord.column);
    Element const* const x = args.x.data + coord.column;
    Element const* const grad = part.data + (coord.column - part.first_column);
    for (std::int64_t row = coord.first_row; row < args.num_rows; row += kRowsTogether * coord.step) {
      Pack grads[kRowsTogether], inputs[kRowsTogether];
#pragma unroll
      for (int i = 0; i < kRowsTogether; ++i) {
        std::int64_t const each = row + i * coord.step;
        if (each < args.num_rows) grads[i] = Pack::load(grad + each * part.stride);
        if (each < args.num_rows && part.is_activated) inputs[i] = Pack::load(x + each * args.x.stride);
      }
#pragma unroll
      for (int i = 0; i < kRowsTogether; ++i) {
        std::int64_t const each = row + i * coord.step;
        if (each >= args.num_rows) break;
        typename Coord::Values values;
        grads[i].read(values);
        if (part.is_activated) {
          typename Coord::Values before;
          inputs[i].read(before);
#pragma unroll
          for (int j = 0; j < kSize; ++j) values[j] *= Silu<Element>(before[j]).slope();
          grads[i] = Pack::of(values);
        }
        grads[i].store(args.grad_x + each * num_columns + coord.column);
#pragma unroll
        for (int j = 0; j < kSize; ++j) sums[j] += values[j];
      }
    }
  }

  // Add the sums of the block's warps in order.
  __shared__ Real<Element> of_warps[kSplitWarps][kWarpThreads * kSize];
  int const warp = static_cast<int>(threadIdx.x) / kWarpThreads, lane = static_cast<int>(threadIdx.x) % kWarpThreads;
#pragma unroll
  for (int j = 0; j < kSize; ++j) of_warps[warp][lane * kSize + j] = sums[j];
  __syncthreads();
  std::int64_t const first_column = std::int64_t{blockIdx.x} * kWarpThreads * kSize;
  for (int i = static_cast<int>(threadIdx.x); i < kWarpThreads * kSize; i += kSplitWarps * kWarpThreads) {
    if (first_column + i >= num_columns) break;
    Real<Element> sum = of_warps[0][i];
#pragma unroll
    for (int other = 1; other < kSplitWarps; ++other) sum += of_warps[other][i];
    args.partials[blockIdx.y * num_columns + first_column + i] = sum;
  }
}

/// Grid of a launch: tiles of columns (x) and blocks of rows (y), about `max_blocks` in all.
struct SplitGrid {
  unsigned columns, rows;

  SplitGrid(std::int64_t num_rows, std::int64_t num_columns, int pack_size, std::int64_t max_blocks) {
    std::int64_t const columns_of_block = std::int64_t{kWarpThreads} * pack_size;
    std::int64_t const num_tiles = (num_columns + columns_of_block - 1) / columns_of_block;
    std::int64_t const max_rows = (num_rows + kSplitWarps - 1) / kSplitWarps;
    columns = static_cast<unsigned>(num_tiles);
    rows = static_cast<unsigned>(std::clamp<std::int64_t>(max_blocks / std::max<std::int64_t>(num_tiles, 1), 1,
                                                          std::max<std::int64_t>(max_rows, 1)));
  }
};

/// Can x and all parts be accessed in packs of 16 bytes?
template <class Pointer>
bool is_in_packs(ElementType type, StridedRows<void const*> const& x, std::span<SplitPart<Pointer> const> parts) {
  bool is = is_in_packs(type, {x.data}, {x.stride});
  for (auto const& part : parts) is = is && is_in_packs(type, {part.rows.data}, {part.rows.stride, part.num_columns});
  return is;
}

/// Calls call.template operator()<Element, kSize>().
template <class Call>
void with_pack(ElementType type, bool is_packed, Call const& call) {
  with_element(type, [&]<class Element>() {
    if (is_packed) return call.template operator()<Element, kPackSize<Element>>();
    call.template operator()<Element, 1>();
  });
}

template <class Element>
SiluSplitParams<Element> silu_split_params(SiluSplit const& args) {
  return {.num_rows = args.num_rows,
          .x = {static_cast<Element const*>(args.x.data), args.x.stride},
          .parts = SplitParts<Element>(args.parts)};
}

template <class Element>
SiluSplitBackwardParams<Element> silu_split_backward_params(SiluSplitBackward const& args, void* partials) {
  return {.num_rows = args.num_rows,
          .x = {static_cast<Element const*>(args.x.data), args.x.stride},
          .grads = SplitParts<Element>(args.grad_parts),
          .grad_x = static_cast<Element*>(args.grad_x),
          .partials = static_cast<Real<Element>*>(partials)};
}

}  // namespace headway::kernels
