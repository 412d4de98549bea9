#pragma once

#include "headway/embedding/table.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace headway::embedding {

/// The unique keys of a batch, in order of first occurrence or in the order given to reorder(), with a CSR map to their
/// positions. Example: the batch 7 9 7 has ids 7 9, counts 2 1, numbers 0 1 0, members 0 2 1 and begins 0 2 3.
struct UniqueKeys {
  std::vector<std::uint64_t> ids;
  std::vector<std::uint32_t> tables;   ///< (unique keys); empty if all keys of the batch have one table.
  std::uint32_t table = 0;             ///< Table of all keys if `tables` is empty.
  std::vector<std::uint32_t> counts;   ///< (unique keys) Lookups that each stands for, saturated at 2^32 - 1.
  std::vector<std::uint32_t> numbers;  ///< (keys of the batch) Unique key of each batch position.
  std::vector<std::uint32_t> members;  ///< (keys of the batch) Positions by unique key, ascending within each.
  std::vector<std::uint32_t> begins;   ///< (unique keys + 1) Offset of each unique key's positions in `members`.

  [[nodiscard]] Keys keys() const { return {.ids = ids, .tables = tables, .table = table, .counts = counts}; }
  [[nodiscard]] Members of_keys() const { return {.numbers = numbers, .members = members, .begins = begins}; }
  [[nodiscard]] std::size_t size() const { return ids.size(); }
};

/// Finds the unique keys of a batch (deduplicate), expands values of unique keys into bags (hand_out), and reduces
/// values of bags to unique keys (add_up). Results do not depend on the number of threads: sums are taken in batch
/// order. Concurrent calls are serialised.
class Deduplicator {
 public:
  Deduplicator() = default;
  Deduplicator(Deduplicator const&) = delete;
  Deduplicator& operator=(Deduplicator const&) = delete;
  virtual ~Deduplicator() = default;

  /// Finds the unique keys of a batch.
  /// @throws comm::UsageError if there are 2^32 keys or more, or not one table and count for each
  [[nodiscard]] virtual UniqueKeys deduplicate(Keys const& keys) = 0;
  /// out[bag] = weighted sum of the values of its keys.
  /// @param values (unique keys, dim) for any dim
  /// @param out (bags, dim)
  /// @throws comm::UsageError if sizes do not agree, or offsets do not grow; likewise below
  virtual void hand_out(UniqueKeys const& unique, Bags const& bags, std::span<float const> values,
                        std::span<float> out) = 0;
  /// sums[key] = weighted sum of the values of the bags that its members are in: the gradient of hand_out().
  /// @param values (bags, dim)
  /// @param sums (unique keys, dim)
  virtual void add_up(UniqueKeys const& unique, Bags const& bags, std::span<float const> values,
                      std::span<float> sums) = 0;
};

/// A Deduplicator for keys and values in host memory. Without `workers`, calls run on the caller's thread alone.
[[nodiscard]] std::unique_ptr<Deduplicator> make_cpu_deduplicator(std::shared_ptr<WorkerPool> workers = nullptr);

/// Makes each key of the batch a unique key of its own, without looking for duplicates.
[[nodiscard]] UniqueKeys take_as_unique(Keys const& keys);

/// The same unique keys in another order. The members of each key stay in batch order. hand_out() and add_up() then use
/// the new order, so that values need not be permuted before or after an exchange.
/// @param order (unique keys) the number in `unique` of each key of the result, for example route().order
/// @throws comm::UsageError unless `order` is a permutation
[[nodiscard]] UniqueKeys reorder(UniqueKeys const& unique, std::span<std::uint32_t const> order);

}  // namespace headway::embedding
