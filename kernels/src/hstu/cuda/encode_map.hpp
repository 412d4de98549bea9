#pragma once

#include "hstu/cuda/head_tiles.hpp"

#include <cuda.h>

namespace headway::kernels {

/// What the copy engine is told of tiles; tokens beyond the last are zeros to it.
/// @throws std::runtime_error if the driver refuses
[[nodiscard]] CUtensorMap encode_map(HeadTiles const& tiles);

}  // namespace headway::kernels
