#pragma once

#include "headway/kernels/hstu_attention.hpp"

#include <cstdint>

namespace headway::kernels {

/// Rows of 16-bit or 32-bit elements that a pass reads or writes.
template <class Pointer>
struct PortableRows {
  JaggedHeads<Pointer> heads;
  std::int32_t dim = 0;
  bool is_aligned = false;  ///< Does each row of a head begin at a multiple of 16 bytes?
};

/// Kernel parameters of a pass. Tiles are cut from the rows of `own`; see portable_pass.cuh.
struct PortableParams {
  HstuSequences sequences;
  HstuMaskOptions mask;
  HstuBias bias;
  LengthScaling length_scaling = LengthScaling::kNone;
  float alpha = 1, scale = 1;
  std::int32_t num_heads = 0;
  std::int32_t num_tiles = 0;
  PortableRows<void const*> own[2], other[2];      ///< Operands by row; `own[0]` and `other[0]` give scores.
  PortableRows<void*> weight_sums, gradient_sums;  ///< Outputs; unused ones are empty.
  float* position_partials = nullptr;              ///< (blocks of the grid, 2 * max_position_distance - 1), or null.
  float* time_partials = nullptr;                  ///< (blocks of the grid, num_time_bounds + 1), or null.
};

}  // namespace headway::kernels
