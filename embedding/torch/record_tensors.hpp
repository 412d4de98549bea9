// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/embedding/record_fragment.hpp"
#include "torch_headers.hpp"

#include <cstdint>
#include <utility>

namespace headway::embedding {

/// A RecordFragment (records of one table in a range of virtual buckets) with its columns as tensors on the CPU. A
/// virtual bucket is a range of key hashes. K rows, P pending keys, which are counted but have no row yet, D columns,
/// S floats of optimizer state.
struct FragmentTensors {
  std::uint32_t routing_version = 0;                ///< Version of the mapping from keys to buckets.
  std::uint64_t updates = 0;                        ///< Optimizer steps of the table.
  std::pair<std::uint32_t, std::uint32_t> buckets;  ///< First, and the one after the last.
  std::uint32_t table = 0;                          ///< Table id in its keys.
  at::Tensor ids, counts, steps;                    ///< (K,) int64, int32 lookups, int32 step of the last lookup.
  at::Tensor embeddings, states;                    ///< (K, D) and (K, S) float32
  at::Tensor pending_ids, pending_counts;           ///< (P,) int64, int32

  /// @throws base::UsageError if a tensor is of another type or shape, or not contiguous
  [[nodiscard]] RecordFragment view() const;
};

/// @returns (1, bytes) uint8
[[nodiscard]] at::Tensor encode(FragmentTensors const& fragment);
/// @param bytes (1, bytes) uint8 on the CPU; the columns share its memory
/// @throws base::UsageError if they are of another format, truncated or altered
[[nodiscard]] FragmentTensors decode(at::Tensor const& bytes);

}  // namespace headway::embedding
