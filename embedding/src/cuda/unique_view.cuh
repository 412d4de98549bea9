#pragma once

#include "cuda/batch_view.cuh"
#include "headway/embedding/cuda_deduplicator.hpp"
#include "headway/embedding/table.hpp"

#include <cstdint>

namespace headway::embedding {

/// Unique keys and their members, as kernels see them.
struct UniqueView {
  std::uint32_t const* numbers;
  std::uint32_t const* members;
  std::uint32_t const* begins;
  DeviceCount size;

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

  /// Where the members of the last end: those of keys that are not known come after them.
  [[nodiscard]] __device__ std::uint32_t num_known() const { return begins[size()]; }
};

}  // namespace headway::embedding
