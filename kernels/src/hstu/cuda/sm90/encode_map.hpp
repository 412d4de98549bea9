// SPDX-License-Identifier: Apache-2.0

// Tiles of a head as TMA sees them.
//
// Example: dim 128, 8 heads, token_stride 1,024 elements. A panel has 64 columns, so the tensor is (64, tokens, 2, 8)
// with strides of 2, 2,048, 128 and 256 bytes. A box of (64, 128, 2, 1) is a tile of 128 tokens: two panels, one
// after the other in shared memory.

#pragma once

#include "headway/kernels/hstu_attention.hpp"

#include <array>
#include <cstdint>

struct CUtensorMap_st;  // CUtensorMap of <cuda.h>, which the tests' device emulator lacks.

namespace headway::kernels {

/// Rows of all sequences as a TMA tensor of rank 4 of 16-bit numbers: columns of a panel, tokens, panels, heads. See
/// SwizzledTile.
struct HeadTiles {
  void const* data = nullptr;
  std::array<std::int64_t, 4> size{};
  std::array<std::int64_t, 4> stride_bytes{};
  std::array<std::int32_t, 4> box{};

  HeadTiles(JaggedHeads<void const*> const& rows, std::int64_t num_tokens, std::int32_t num_heads, std::int32_t dim,
            std::int32_t tile_rows)
      : data(rows.data) {
    std::int32_t const columns = dim < 64 ? dim : 64;
    size = {columns, num_tokens, dim / columns, num_heads};
    // TMA ignores the stride of a dimension of size 1, but it must be valid.
    stride_bytes = {2, rows.token_stride * 2, columns * 2, (num_heads > 1 ? rows.head_stride : dim) * 2};
    box = {columns, tile_rows, dim / columns, 1};
  }
};

/// TMA descriptor of tiles in global memory. Tokens beyond the last are read as 0.
/// @throws std::runtime_error if the driver refuses
[[nodiscard]] CUtensorMap_st encode_map(HeadTiles const& tiles);

}  // namespace headway::kernels
