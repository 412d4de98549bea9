#pragma once

#include "headway/embedding/table.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

namespace headway::embedding {

/// Device version of route(). Keys beyond Keys::num_known come last in `order`, and are not counted.
/// @param order (keys)
/// @param counts (ranks), between 1 and kNumVirtualBuckets ranks
void route_keys_async(Keys const& keys, std::span<std::uint32_t> order, std::span<std::int64_t> counts,
                      cudaStream_t stream);

}  // namespace headway::embedding
