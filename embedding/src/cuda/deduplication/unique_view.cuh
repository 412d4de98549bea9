// SPDX-License-Identifier: Apache-2.0

// Unique keys as kernels see them: the arrays of CudaUniqueKeys without sizes, and a count on the device.

#pragma once

#include "cuda/batch/batch_view.cuh"
#include "headway/embedding/cuda_deduplicator.hpp"
#include "headway/embedding/table.hpp"

#include <cstdint>

namespace headway::embedding {

/// Unique keys and their CSR map, for kernels (fields as in UniqueKeys).
struct UniqueView {
  std::uint32_t const* inverse_indices;  ///< (keys)
  std::uint32_t const* csr_indices;      ///< (keys)
  std::uint32_t const* csr_offsets;      ///< (unique keys + 1)
  DeviceCount size;                      ///< Number of unique keys.

  explicit UniqueView(CudaUniqueKeys const& unique)
      : inverse_indices(unique.inverse_indices.data()),
        csr_indices(unique.csr_indices.data()),
        csr_offsets(unique.csr_offsets.data()),
        size{static_cast<std::uint32_t>(unique.inverse_indices.size()), unique.size} {}
  UniqueView(CsrMap const& csr, DeviceCount num_keys)
      : inverse_indices(csr.inverse_indices.data()),
        csr_indices(csr.csr_indices.data()),
        csr_offsets(csr.csr_offsets.data()),
        size(num_keys) {}

  /// Number of known keys of the batch, which are the members of all unique keys. Entries of `csr_indices` from here on
  /// belong to keys beyond Keys::num_known.
  [[nodiscard]] __device__ std::uint32_t num_known() const { return csr_offsets[size()]; }
};

}  // namespace headway::embedding
