#pragma once

#include "headway/embedding/cuda_deduplicator.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace headway::embedding {

struct SegmentedSumArgs {
  CudaUniqueKeys unique;
  std::uint32_t const* bag_of;  ///< (keys) None: each key is a bag.
  float const* weights;         ///< (keys) None: 1.
  std::size_t dim;
  float const* values;  ///< (bags, dim)
  float* sums;          ///< (unique keys, dim)
};

/// sums[number] = the sum of weight * values[bag] of the members of each unique key. Members are added up in their
/// order within pieces whose ends depend only on where in all members they are, and then the pieces in their order.
void sum_members_async(SegmentedSumArgs const& args, cudaStream_t stream);

}  // namespace headway::embedding
