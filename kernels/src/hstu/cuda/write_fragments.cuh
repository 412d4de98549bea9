#pragma once

#include "hstu/cuda/fragment_place.cuh"

#include <cstdint>

namespace headway::kernels {

/// Writes a thread's packed accumulator elements (pairs of columns, in the layout of a register operand) to a swizzled
/// tile in shared memory.
template <class Tile, int kSteps>
__device__ __forceinline__ void write_fragments(std::byte* tile, FragmentPlace const& place,
                                                std::uint32_t const (&pairs)[kSteps][4],
                                                std::int32_t first_column = 0) {
#pragma unroll
  for (int i = 0; i < kSteps * 4; ++i) {
    auto const row = static_cast<std::uint32_t>(place.row + i % 2 * 8);
    auto const column = static_cast<std::uint32_t>(first_column + place.column + i / 2 * 8);
    *reinterpret_cast<std::uint32_t*>(tile + Tile::offset_of(row, column)) = pairs[i / 4][i % 4];
  }
}

}  // namespace headway::kernels
