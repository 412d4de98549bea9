// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace headway::benchmarks {

/// Distribution of a rank's bytes over the destinations.
enum class Split {
  kEven,
  kZipf,    ///< Zipf with exponent 1.0; each source has a popularity order of its own.
  kIncast,  ///< Zipf with exponent 1.0 and the same order for all sources: rank 0 receives most.
};

/// Bytes from `source` to `destination`; they add up to `bytes_per_rank` over all destinations. Deterministic.
std::size_t block_bytes(Split split, std::size_t bytes_per_rank, int source, int destination, int ranks);

}  // namespace headway::benchmarks
