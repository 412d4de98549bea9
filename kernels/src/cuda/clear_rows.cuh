// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/barrier.cuh"
#include "cuda/device.cuh"
#include "cuda/wgmma.cuh"

#include <cstddef>
#include <cstdint>

namespace headway::kernels {

/// Sets the rows of a tile in shared memory from `first_row` on to 0. All threads of a warpgroup call it, then
/// fence_for_wgmma(). It does nothing if `first_row` is at least the rows of the tile.
///
/// TMA copies whole tiles. Rows behind the end of a sequence hold rows of the next one, or memory that nobody has
/// written. Their attention weights are 0, but 0 times infinity or NaN is NaN, so the rows themselves must be 0.
///
/// Example: a sequence of 300 keys, tiles of 128. The last tile holds keys 256 to 299; rows 44 to 127 are cleared.
///
/// Several warpgroups may clear the same rows at any time between the tile's arrival and its release: each writes
/// before its own wgmma reads, and all write zeros.
/// @tparam Tile a SwizzledTile (wgmma.cuh)
template <class Tile>
__device__ __forceinline__ void clear_rows_behind(std::byte* tile, std::int32_t first_row) {
  constexpr std::int32_t kUnits = Tile::kRowBytes / 16, kPanels = Tile::kBytes / Tile::kPanelBytes;
  // The swizzle permutes 16-byte units within a row only, so whole rows can be cleared without it.
  for (std::int32_t i = first_row * kUnits + static_cast<std::int32_t>(threadIdx.x % 128); i < Tile::kPanelBytes / 16;
       i += 128) {
#pragma unroll
    for (std::int32_t panel = 0; panel < kPanels; ++panel) {
      reinterpret_cast<uint4*>(tile + panel * Tile::kPanelBytes)[i] = make_uint4(0, 0, 0, 0);
    }
  }
}

/// Makes what the threads of a warpgroup wrote to shared memory visible to its next wgmma.
/// @param barrier a named barrier that this warpgroup alone uses
__device__ __forceinline__ void fence_for_wgmma(int barrier) {
  fence_async_proxy();
  named_barrier_sync(barrier, 128);
}

}  // namespace headway::kernels
