#pragma once

#include "headway/embedding/table.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace headway::embedding {

/// The different keys of a batch, in the order in which they first come.
struct UniqueKeys {
  std::vector<std::uint64_t> ids;
  std::vector<std::uint32_t> tables;  ///< Empty where the batch has one for all.
  std::uint32_t table = 0;
  std::vector<std::uint32_t> counts;   ///< How often each comes.
  std::vector<std::uint32_t> numbers;  ///< (keys of the batch) Which of them each is.

  [[nodiscard]] Keys keys() const { return {.ids = ids, .tables = tables, .table = table}; }
  [[nodiscard]] std::size_t size() const { return ids.size(); }
};

/// Finds duplicates in batches of keys, and adds up and hands out what belongs to them. The results do not depend on
/// the number of threads: sums are taken in the order of the batch. Of one call after the other.
class Deduplicator {
 public:
  Deduplicator() = default;
  Deduplicator(Deduplicator const&) = delete;
  Deduplicator& operator=(Deduplicator const&) = delete;
  virtual ~Deduplicator() = default;

  /// @returns what holds until the next call
  /// @throws comm::UsageError if there are 2^32 keys or more, or not one table for each
  virtual UniqueKeys const& deduplicate(Keys const& keys) = 0;
  /// What came with the keys of the last batch, added up for each unique key.
  /// @param values (keys of the batch, dim) for any dim
  /// @param sums (unique keys, dim)
  /// @throws comm::UsageError if sizes do not agree, or there was no batch; likewise below
  virtual void add_up(std::span<float const> values, std::span<float> sums) const = 0;
  /// Gives each key of the last batch what its unique key has.
  /// @param values (unique keys, dim)
  /// @param out (keys of the batch, dim)
  virtual void hand_out(std::span<float const> values, std::span<float> out) const = 0;
};

/// In memory of the host. @throws comm::UsageError if num_threads is below 1
[[nodiscard]] std::unique_ptr<Deduplicator> make_cpu_deduplicator(int num_threads);

}  // namespace headway::embedding
