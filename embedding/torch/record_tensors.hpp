// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/embedding/record_fragment.hpp"
#include "torch_headers.hpp"

#include <cstdint>
#include <utility>

namespace headway::embedding {

/// A RecordFragment with its columns as tensors on the CPU. K rows, P pending keys, D columns, S floats of state.
struct FragmentTensors {
  std::uint32_t routing_version = 0;
  std::uint64_t updates = 0;
  std::pair<std::uint32_t, std::uint32_t> buckets;  ///< First, and the one after the last.
  std::uint32_t table = 0;
  at::Tensor ids, counts, steps;           ///< (K,) int64, int32, int32
  at::Tensor embeddings, states;           ///< (K, D) and (K, S) float32
  at::Tensor pending_ids, pending_counts;  ///< (P,) int64, int32

  /// @throws base::UsageError if a tensor is of another type or shape, or not contiguous
  [[nodiscard]] RecordFragment view() const;
};

/// @returns (1, bytes) uint8
[[nodiscard]] at::Tensor encode(FragmentTensors const& fragment);
/// @param bytes (1, bytes) uint8 on the CPU; the columns share its memory
/// @throws base::UsageError if they are of another format, truncated or altered
[[nodiscard]] FragmentTensors decode(at::Tensor const& bytes);

}  // namespace headway::embedding
