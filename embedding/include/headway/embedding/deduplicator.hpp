// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/embedding/table.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace headway::embedding {

/// The unique keys of a batch, in order of first occurrence or in the order given to reorder(), with a CSR map to their
/// positions, which are called its members. Example: the batch 7 9 7 has ids 7 9, counts 2 1, inverse_indices 0 1 0,
/// csr_indices 0 2 1 and csr_offsets 0 2 3.
struct UniqueKeys {
  std::vector<std::uint64_t> ids;
  std::vector<std::uint32_t> tables;           ///< (unique keys); empty if all keys of the batch have one table.
  std::uint32_t table = 0;                     ///< Table of all keys if `tables` is empty.
  std::vector<std::uint32_t> counts;           ///< (unique keys) Lookups that each stands for, saturated at 2^32 - 1.
  std::vector<std::uint32_t> inverse_indices;  ///< (keys of the batch) Unique key of each batch position.
  std::vector<std::uint32_t> csr_indices;      ///< (keys of the batch) Positions by unique key, ascending within each.
  std::vector<std::uint32_t>
      csr_offsets;  ///< (unique keys + 1) Offset of each unique key's positions in `csr_indices`.

  [[nodiscard]] Keys keys() const { return {.ids = ids, .tables = tables, .table = table, .counts = counts}; }
  [[nodiscard]] CsrMap csr() const {
    return {.inverse_indices = inverse_indices, .csr_indices = csr_indices, .csr_offsets = csr_offsets};
  }
  [[nodiscard]] std::size_t size() const { return ids.size(); }
};

/// Finds the unique keys of a batch (deduplicate), expands values of unique keys into bags (expand), and reduces
/// values of bags to unique keys (reduce). Results do not depend on the number of threads: sums are taken in batch
/// order. Concurrent calls are serialised.
class Deduplicator {
 public:
  Deduplicator() = default;
  Deduplicator(Deduplicator const&) = delete;
  Deduplicator& operator=(Deduplicator const&) = delete;
  virtual ~Deduplicator() = default;

  /// Finds the unique keys of a batch.
  /// @throws base::UsageError if there are 2^32 keys or more, or not one table and count for each
  [[nodiscard]] virtual UniqueKeys deduplicate(Keys const& keys) = 0;
  /// out[bag] = weighted sum of the values of its keys.
  /// @param values (unique keys, dim) for any dim
  /// @param out (bags, dim)
  /// @throws base::UsageError if sizes do not agree, or offsets do not grow; likewise below
  virtual void expand(UniqueKeys const& unique, Bags const& bags, std::span<float const> values,
                      std::span<float> out) = 0;
  /// sums[key] = weighted sum of the values of the bags that its members are in: the gradient of expand().
  /// @param values (bags, dim)
  /// @param sums (unique keys, dim)
  virtual void reduce(UniqueKeys const& unique, Bags const& bags, std::span<float const> values,
                      std::span<float> sums) = 0;
};

/// A Deduplicator for keys and values in host memory. Without `thread_pool`, calls run on the caller's thread alone.
[[nodiscard]] std::unique_ptr<Deduplicator> make_cpu_deduplicator(
    std::shared_ptr<base::ThreadPool> thread_pool = nullptr);

/// Makes each key of the batch a unique key of its own, without looking for duplicates.
[[nodiscard]] UniqueKeys from_unique(Keys const& keys);

/// The same unique keys in another order. The members of each key stay in batch order. expand() and reduce() then use
/// the new order, so that values need not be permuted before or after an exchange.
/// @param order (unique keys) the index in `unique` of each key of the result, for example route().order
/// @throws base::UsageError unless `order` is a permutation
[[nodiscard]] UniqueKeys reorder(UniqueKeys const& unique, std::span<std::uint32_t const> order);

}  // namespace headway::embedding
