#pragma once

#include "headway/kernels/hstu_attention.hpp"

#include <cstdint>

namespace headway::kernels {

/// Rows of elements of any 16 or 32 bits that a pass reads, or writes.
template <class Pointer>
struct PortableRows {
  JaggedHeads<Pointer> heads;
  std::int32_t dim = 0;
  bool is_aligned = false;  ///< Whether each row of a head begins at a multiple of 16 bytes.
};

/// What a pass is given; see portable_pass.cuh.
struct PortableParams {
  HstuSequences sequences;
  HstuMaskOptions mask;
  HstuBias bias;
  LengthScaling length_scaling = LengthScaling::kNone;
  float alpha = 1, scale = 1;
  std::int32_t num_heads = 0;
  std::int32_t num_tiles = 0;
  PortableRows<void const*> own[2], other[2];
  PortableRows<void*> weight_sums, gradient_sums;
  float* position_partials = nullptr;  ///< (blocks of the grid, 2 * max_position_distance - 1), or null.
  float* time_partials = nullptr;      ///< (blocks of the grid, num_time_bounds + 1), or null.
};

}  // namespace headway::kernels
