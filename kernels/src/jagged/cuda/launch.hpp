// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/cuda_check.hpp"
#include "headway/kernels/cuda_stream.hpp"
#include "jagged/expect_sizes.hpp"

#include <cstdint>
#include <limits>

namespace headway::kernels {

/// Blocks of a launch for `num_units`. @throws std::invalid_argument if they are too many
inline unsigned num_blocks(std::int64_t num_units, std::int64_t units_of_block) {
  std::int64_t const count = (num_units + units_of_block - 1) / units_of_block;
  expect(count <= std::numeric_limits<std::int32_t>::max(), "jagged rows: too many for one launch");
  return static_cast<unsigned>(count);
}

}  // namespace headway::kernels
