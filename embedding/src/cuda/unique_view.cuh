#pragma once

#include "cuda/batch_view.cuh"
#include "headway/embedding/cuda_deduplicator.hpp"
#include "headway/embedding/table.hpp"

#include <cstdint>

namespace headway::embedding {

/// Unique keys and their CSR map, for kernels (fields as in UniqueKeys).
struct UniqueView {
  std::uint32_t const* numbers;  ///< (keys)
  std::uint32_t const* members;  ///< (keys)
  std::uint32_t const* begins;   ///< (unique keys + 1)
  DeviceCount size;              ///< Number of unique keys.

  explicit UniqueView(CudaUniqueKeys const& unique)
      : numbers(unique.numbers.data()),
        members(unique.members.data()),
        begins(unique.begins.data()),
        size{static_cast<std::uint32_t>(unique.numbers.size()), unique.size} {}
  UniqueView(Members const& of_keys, DeviceCount num_keys)
      : numbers(of_keys.numbers.data()),
        members(of_keys.members.data()),
        begins(of_keys.begins.data()),
        size(num_keys) {}

  /// Number of members. Entries of `members` from here on belong to keys beyond Keys::num_known.
  [[nodiscard]] __device__ std::uint32_t num_known() const { return begins[size()]; }
};

}  // namespace headway::embedding
