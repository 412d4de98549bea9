// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/kernels/host_device.hpp"

#include <cstdint>

namespace headway::embedding {

/// count + more, at most 2^32 - 1.
[[nodiscard]] HEADWAY_HOST_DEVICE constexpr std::uint32_t saturating_sum(std::uint32_t count, std::uint32_t more) {
  constexpr std::uint32_t kMost = 0xffffffff;
  return more > kMost - count ? kMost : count + more;
}

}  // namespace headway::embedding
