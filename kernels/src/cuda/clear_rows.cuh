#pragma once

#include "cuda/barrier.cuh"
#include "cuda/device.cuh"
#include "cuda/wgmma.cuh"

#include <cstddef>
#include <cstdint>

namespace headway::kernels {

/// Sets the rows of a tile in shared memory from `first_row` on to 0. All threads of a warpgroup call it, and then
/// show_writes_to_products(); from kRows on it does nothing.
///
/// A copy brings whole tiles. Behind the end of a sequence these hold rows of the next one, or memory that nobody has
/// written. Their weights are 0, but 0 times a number that is infinite or none is none.
///
/// Several warpgroups may clear the same rows at any time between the tile's arrival and its release: each writes
/// before its own products read, and all write the same.
template <class Tile>
__device__ __forceinline__ void clear_rows_behind(std::byte* tile, std::int32_t first_row) {
  constexpr std::int32_t kUnits = Tile::kRowBytes / 16, kPanels = Tile::kBytes / Tile::kPanelBytes;
  // Swizzling exchanges units within a row only.
  for (std::int32_t i = first_row * kUnits + static_cast<std::int32_t>(threadIdx.x % 128); i < Tile::kPanelBytes / 16;
       i += 128) {
#pragma unroll
    for (std::int32_t panel = 0; panel < kPanels; ++panel) {
      reinterpret_cast<uint4*>(tile + panel * Tile::kPanelBytes)[i] = make_uint4(0, 0, 0, 0);
    }
  }
}

/// Lets the products of a warpgroup see what its threads have written to shared memory.
/// @param barrier a named barrier that this warpgroup alone uses
__device__ __forceinline__ void show_writes_to_products(int barrier) {
  fence_async_proxy();
  sync_named(barrier, 128);
}

}  // namespace headway::kernels
