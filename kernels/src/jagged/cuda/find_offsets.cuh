#pragma once

#include "headway/kernels/jagged_offsets.hpp"

#include <cstdint>

namespace headway::kernels {

/// Step from offset i - 1 to offset i. One inclusive scan over these steps gives both lists of offsets: where the
/// second list begins, the step is minus the sum of all lengths before.
template <class Length>
__device__ std::int64_t offset_step(MovedLengths const& lengths, std::int64_t i) {
  if (i == 0) return 0;
  if (i <= lengths.num_before) return static_cast<Length const*>(lengths.before)[i - 1];
  if (i == lengths.num_before + 1) return -lengths.num_rows;
  return static_cast<Length const*>(lengths.after)[i - lengths.num_before - 2];
}

}  // namespace headway::kernels
