#pragma once

#include "headway/embedding/cuda_deduplicator.hpp"
#include "headway/embedding/deduplicator.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>

namespace headway::embedding {

/// out[bag] = sum of weight * values[numbers[key]] over the keys of the bag, in batch order.
/// @param values (unique keys, dim)
/// @param out (bags, dim)
void sum_bags_async(CudaUniqueKeys const& unique, Bags const& bags, std::size_t dim, float const* values, float* out,
                    cudaStream_t stream);

}  // namespace headway::embedding
