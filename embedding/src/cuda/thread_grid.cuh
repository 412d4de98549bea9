#pragma once

#include <cstdint>

namespace headway::embedding {

inline constexpr unsigned kThreadsPerBlock = 256;

/// Blocks that have a thread for each of so many items.
constexpr unsigned num_blocks(std::uint64_t num_items) {
  return static_cast<unsigned>((num_items + kThreadsPerBlock - 1) / kThreadsPerBlock);
}

/// The number of this thread in its grid.
__device__ inline std::uint32_t thread_number() { return blockIdx.x * kThreadsPerBlock + threadIdx.x; }

}  // namespace headway::embedding
