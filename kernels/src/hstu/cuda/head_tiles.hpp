#pragma once

#include "headway/kernels/hstu_attention.hpp"

#include <array>
#include <cstdint>

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

}  // namespace headway::kernels
