// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/cuda_check.hpp"
#include "headway/kernels/cuda_stream.hpp"
#include "jagged/expect_sizes.hpp"

#include <cstdint>
#include <limits>

namespace headway::kernels {

/// Blocks of a launch for `num_units` threads, warps or rows; 0 for none, and then nothing may be launched.
/// @throws std::invalid_argument if there are more than 2^31 - 1, the limit of gridDim.x
inline unsigned num_blocks(std::int64_t num_units, std::int64_t units_per_block) {
  std::int64_t const count = (num_units + units_per_block - 1) / units_per_block;
  expect(count <= std::numeric_limits<std::int32_t>::max(), "jagged rows: too many blocks for one launch");
  return static_cast<unsigned>(count);
}

}  // namespace headway::kernels
