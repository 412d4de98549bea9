// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/embedding/cuda_place.hpp"
#include "headway/embedding/deduplicator.hpp"
#include "headway/embedding/table.hpp"

#include <cstdint>
#include <memory>
#include <span>

namespace headway::embedding {

/// UniqueKeys in device memory that the caller owns. Only the device knows how many unique keys there are (`*size`).
/// The members of a unique key are its positions in the batch.
/// Entries of `ids`, `tables` and `counts` from `*size` on, and of `csr_offsets` after `*size`, are not set.
/// `inverse_indices` and `csr_indices` are undefined for keys beyond Keys::num_known.
struct CudaUniqueKeys {
  std::span<std::uint64_t> ids{};     ///< (keys)
  std::span<std::uint32_t> tables{};  ///< (keys); empty if all keys of the batch have one table.
  std::uint32_t table = 0;            ///< Table of all keys if `tables` is empty; must equal that of the batch.
  std::span<std::uint32_t> counts{};  ///< (keys) Lookups per unique key, saturated at 2^32 - 1.
  std::span<std::uint32_t> inverse_indices{};  ///< (keys) Unique key of each batch position.
  std::span<std::uint32_t> csr_indices{};      ///< (keys) Batch positions, grouped by unique key.
  std::span<std::uint32_t> csr_offsets{};      ///< (keys + 1) Offset of each unique key's group in `csr_indices`.
  std::uint32_t* size = nullptr;               ///< Number of unique keys, device memory.

  [[nodiscard]] Keys keys() const {
    return {.ids = ids, .tables = tables, .table = table, .counts = counts, .are_unique = true, .num_known = size};
  }
};

/// Deduplicator for a CUDA device. Keys, bags and values are in device memory; the host does not check bag offsets. All
/// calls are stream-ordered and never wait for the device. Results are the same in every run. Sums of many members are
/// taken in pieces of a fixed size, so they differ from those of the host by rounding.
class CudaDeduplicator {
 public:
  CudaDeduplicator() = default;
  CudaDeduplicator(CudaDeduplicator const&) = delete;
  CudaDeduplicator& operator=(CudaDeduplicator const&) = delete;
  virtual ~CudaDeduplicator() = default;

  /// Finds the unique keys of a batch, their counts and their members.
  /// @param keys `are_unique` is ignored
  /// @throws base::UsageError if there are 2^31 keys or more, or sizes do not agree; likewise below
  virtual void deduplicate(Keys const& keys, CudaUniqueKeys const& unique) = 0;
  /// Makes each key of the batch a unique key of its own, without looking for duplicates.
  virtual void from_unique(Keys const& keys, CudaUniqueKeys const& unique) = 0;
  /// Device version of embedding::reorder(). `order` is not checked.
  /// @param order (unique keys or more) the index in `unique` of each key of `reordered`
  /// @param reordered must not share memory with `unique`
  virtual void reorder(CudaUniqueKeys const& unique, std::span<std::uint32_t const> order,
                       CudaUniqueKeys const& reordered) = 0;
  /// out[bag] = weighted sum of the values of its known keys. Without offsets, the bags of keys beyond Keys::num_known
  /// may stay unset.
  /// @param values (unique keys or more, dim)
  /// @param out (bags, dim)
  virtual void expand(CudaUniqueKeys const& unique, Bags const& bags, std::size_t dim, std::span<float const> values,
                      std::span<float> out) = 0;
  /// sums[key] = weighted sum of the values of the bags that its members are in: the gradient of expand().
  /// @param values (bags, dim)
  /// @param sums (unique keys or more, dim); rows beyond the unique keys are not set
  virtual void reduce(CudaUniqueKeys const& unique, Bags const& bags, std::size_t dim, std::span<float const> values,
                      std::span<float> sums) = 0;
  /// Groups the keys of a batch by owner rank, as embedding::route() does. Keys beyond Keys::num_known come last and
  /// count for no rank.
  /// @param order (keys) batch positions, rank by rank
  /// @param counts (ranks) keys per rank
  virtual void route(Keys const& keys, std::span<std::uint32_t> order, std::span<std::int64_t> counts) = 0;
};

/// A CudaDeduplicator for `place`.
/// @throws base::SystemError if a CUDA call fails
/// @throws base::UsageError if this build has no CUDA
[[nodiscard]] std::unique_ptr<CudaDeduplicator> make_cuda_deduplicator(CudaPlace const& place);

}  // namespace headway::embedding
