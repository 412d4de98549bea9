#pragma once

#include "headway/kernels/hstu_attention.hpp"

#include <array>
#include <cstdint>

namespace headway::kernels {

/// Rows of all sequences as tiles are cut from them: a tensor of rank 4 of 16-bit numbers, with the columns of a panel,
/// tokens, panels, heads; see SwizzledTile.
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
    // The stride of the only head is not looked at, but must be one.
    stride_bytes = {2, rows.token_stride * 2, columns * 2, (num_heads > 1 ? rows.head_stride : dim) * 2};
    box = {columns, tile_rows, dim / columns, 1};
  }
};

}  // namespace headway::kernels
