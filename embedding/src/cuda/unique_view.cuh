#pragma once

#include "headway/embedding/cuda_deduplicator.hpp"

#include <cstdint>

namespace headway::embedding {

/// UniqueKeys, as kernels see them.
struct UniqueView {
  std::uint32_t const* numbers;
  std::uint32_t const* members;
  std::uint32_t const* begins;
  std::uint32_t const* size;

  explicit UniqueView(CudaUniqueKeys const& unique)
      : numbers(unique.numbers.data()),
        members(unique.members.data()),
        begins(unique.begins.data()),
        size(unique.size) {}

  /// Where the members of the last end: those of keys that are not known come after them.
  [[nodiscard]] __device__ std::uint32_t num_known() const { return begins[*size]; }
};

}  // namespace headway::embedding
