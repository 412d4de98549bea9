#pragma once

#include "headway/kernels/jagged_offsets.hpp"

#include <cstdint>

namespace headway::kernels {

/// What offset i is more than offset i - 1, with minus the sum of all lengths before where those after begin.
template <class Length>
__device__ std::int64_t offset_step(MovedLengths const& lengths, std::int64_t i) {
  if (i == 0) return 0;
  if (i <= lengths.num_before) return static_cast<Length const*>(lengths.before)[i - 1];
  if (i == lengths.num_before + 1) return -lengths.num_rows;
  return static_cast<Length const*>(lengths.after)[i - lengths.num_before - 2];
}

}  // namespace headway::kernels
