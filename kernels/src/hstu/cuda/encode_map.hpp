#pragma once

#include "hstu/cuda/head_tiles.hpp"

#include <cuda.h>

namespace headway::kernels {

/// TMA descriptor of tiles in global memory. Tokens beyond the last are read as 0.
/// @throws std::runtime_error if the driver refuses
[[nodiscard]] CUtensorMap encode_map(HeadTiles const& tiles);

}  // namespace headway::kernels
