#pragma once

#include "headway/embedding/table.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace headway::embedding {

/// The different keys of a batch, in the order in which they first come, or as reorder() was told.
struct UniqueKeys {
  std::vector<std::uint64_t> ids;
  std::vector<std::uint32_t> tables;  ///< Empty where the batch has one for all.
  std::uint32_t table = 0;
  std::vector<std::uint32_t> counts;   ///< Lookups that each stands for, as many as fit.
  std::vector<std::uint32_t> numbers;  ///< (keys of the batch) Which of them each is.
  std::vector<std::uint32_t> members;  ///< (keys of the batch) By unique key, and of each in the order of the batch.
  std::vector<std::uint32_t> begins;   ///< (unique keys + 1) Of each one's in `members`.

  [[nodiscard]] Keys keys() const { return {.ids = ids, .tables = tables, .table = table, .counts = counts}; }
  [[nodiscard]] Members of_keys() const { return {.numbers = numbers, .members = members, .begins = begins}; }
  [[nodiscard]] std::size_t size() const { return ids.size(); }
};

/// Finds duplicates in batches of keys, and hands out and adds up what belongs to them. The results do not depend on
/// the number of threads: sums are taken in the order of the batch. Calls beside each other wait for each other.
class Deduplicator {
 public:
  Deduplicator() = default;
  Deduplicator(Deduplicator const&) = delete;
  Deduplicator& operator=(Deduplicator const&) = delete;
  virtual ~Deduplicator() = default;

  /// @throws comm::UsageError if there are 2^32 keys or more, or not one table and count for each
  [[nodiscard]] virtual UniqueKeys deduplicate(Keys const& keys) = 0;
  /// Gives each bag the sum of what its keys have.
  /// @param values (unique keys, dim) for any dim
  /// @param out (bags, dim)
  /// @throws comm::UsageError if sizes do not agree, or offsets do not grow; likewise below
  virtual void hand_out(UniqueKeys const& unique, Bags const& bags, std::span<float const> values,
                        std::span<float> out) = 0;
  /// Adds up for each unique key what the bags of its keys have: the gradient of hand_out().
  /// @param values (bags, dim)
  /// @param sums (unique keys, dim)
  virtual void add_up(UniqueKeys const& unique, Bags const& bags, std::span<float const> values,
                      std::span<float> sums) = 0;
};

/// In memory of the host. Without workers calls run in their caller alone.
[[nodiscard]] std::unique_ptr<Deduplicator> make_cpu_deduplicator(std::shared_ptr<WorkerPool> workers = nullptr);

/// The keys of a batch as if all of them were different.
[[nodiscard]] UniqueKeys take_as_unique(Keys const& keys);

/// The same unique keys in another order; the members of each stay in the order of the batch. So what belongs to them
/// is handed out and added up in that order, and need not be moved.
/// @param order (unique keys) The number of each in `unique`, such as that of a route() to their owners.
/// @throws comm::UsageError unless every number is there once
[[nodiscard]] UniqueKeys reorder(UniqueKeys const& unique, std::span<std::uint32_t const> order);

}  // namespace headway::embedding
