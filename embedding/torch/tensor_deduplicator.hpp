// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/thread_pool.hpp"
#include "headway/embedding/deduplicator.hpp"
#include "tensors.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace headway::embedding {

/// Unique keys as a Python object. On a CUDA device, tensors have the length of the batch, and only the device knows
/// the number of unique keys until narrow() sets it.
struct UniqueTensors {
  KeyTensors room;                   ///< Buffers whose first entries are the unique keys.
  std::optional<std::int64_t> size;  ///< Number of unique keys; none: only the device knows it.
  at::Tensor inverse_indices;        ///< (K,) int32, unique key of each batch position.

  std::shared_ptr<UniqueKeys const> on_host{};                ///< CPU only: owner of the memory of the tensors.
  at::Tensor csr_indices{}, csr_offsets{}, size_on_device{};  ///< CUDA only: the other fields of CudaUniqueKeys.

  /// The unique keys: exactly `size`, or all of `room` with the number in Keys::num_known.
  [[nodiscard]] KeyTensors keys() const;
  /// CSR map from unique keys to batch positions. @throws base::UsageError unless the keys are on `device`
  [[nodiscard]] CsrMap csr(at::Device device) const;
  /// Rows of tensors with one row per unique key: their number, or its upper bound if only the device knows it.
  [[nodiscard]] std::int64_t num_rows() const { return size.value_or(room.ids.numel()); }
  /// Number of unique keys. Waits for the device if only it knows.
  [[nodiscard]] std::int64_t wait_for_size() const;
  /// The same unique keys with their number set. `known_size` must be the true number.
  [[nodiscard]] UniqueTensors narrow(std::int64_t known_size) const;
};

/// Bags (lists of keys whose embeddings are pooled) as optional tensors, for the time of a call: it holds references.
/// Without offsets each key is a bag. Without weights they are 1.
struct BagTensors {
  std::optional<at::Tensor> const& offsets;  ///< (B + 1,) int64
  std::optional<at::Tensor> const& weights;  ///< (K,)

  [[nodiscard]] Bags view(at::Device device) const;
};

/// Deduplicator or CudaDeduplicator on tensors, for Python. K keys of the batch, B bags, D columns, R ranks; `rows` is
/// UniqueTensors::num_rows().
class TensorDeduplicator {
 public:
  TensorDeduplicator() = default;
  TensorDeduplicator(TensorDeduplicator const&) = delete;
  TensorDeduplicator& operator=(TensorDeduplicator const&) = delete;
  virtual ~TensorDeduplicator() = default;

  /// Finds the unique keys of a batch.
  [[nodiscard]] virtual UniqueTensors deduplicate(KeyTensors const& keys) = 0;
  /// Makes each key a unique key of its own, without looking for duplicates.
  [[nodiscard]] virtual UniqueTensors from_unique(KeyTensors const& keys) = 0;
  /// The same unique keys in another order, for values that are sorted by owner rank.
  /// @param order (rows,) int32, the index in `unique` of each key of the result, as from route()
  [[nodiscard]] virtual UniqueTensors reorder(UniqueTensors const& unique, at::Tensor const& order) = 0;
  /// Expands values of unique keys to bags. @param values (rows, D)
  /// @returns (B, D)
  [[nodiscard]] virtual at::Tensor expand(UniqueTensors const& unique, BagTensors const& bags,
                                          at::Tensor const& values) = 0;
  /// Reduces values of bags to unique keys. @param values (B, D)
  /// @returns (rows, D)
  [[nodiscard]] virtual at::Tensor reduce(UniqueTensors const& unique, BagTensors const& bags,
                                          at::Tensor const& values) = 0;
  /// Groups keys by owner rank.
  /// @returns (K,) int32 batch positions, rank by rank, and (R,) int64 keys per rank
  [[nodiscard]] virtual std::pair<at::Tensor, at::Tensor> route(KeyTensors const& keys, std::uint32_t num_ranks) = 0;
};

/// A deduplicator for tensors on the CPU, or on a CUDA device.
[[nodiscard]] std::unique_ptr<TensorDeduplicator> make_host_deduplicator(std::shared_ptr<base::ThreadPool> thread_pool);
[[nodiscard]] std::unique_ptr<TensorDeduplicator> make_device_deduplicator(at::Device device);

}  // namespace headway::embedding
