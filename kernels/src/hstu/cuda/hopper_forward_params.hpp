#pragma once

#include "headway/kernels/hstu_attention.hpp"

#include <cstdint>

namespace headway::kernels {

/// Kernel parameters besides the TMA descriptors. Pointers are to device memory.
struct HopperForwardParams {
  HstuSequences sequences;
  HstuMaskOptions mask;
  HstuBias bias;
  LengthScaling length_scaling = LengthScaling::kNone;
  float half_alpha = 0.5F, scale = 1;
  std::int32_t num_heads = 0;
  JaggedHeads<std::uint16_t*> out;
  std::int32_t section_sequences = 1;   ///< See TileSchedule.
  std::int32_t* tiles_taken = nullptr;  ///< See TileCounter.
};

}  // namespace headway::kernels
