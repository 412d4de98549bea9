#pragma once

#include "headway/embedding/table.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

namespace headway::embedding {

/// What route() does, on a device. Keys that are not known come last in `order`, and are not counted.
/// @param order (keys)
/// @param counts (ranks) from 1 to kNumVirtualBuckets
void route_keys_async(Keys const& keys, std::span<std::uint32_t> order, std::span<std::int64_t> counts,
                      cudaStream_t stream);

}  // namespace headway::embedding
