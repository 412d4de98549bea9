// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/thread_pool.hpp"
#include "headway/embedding/initializer.hpp"
#include "headway/embedding/key.hpp"
#include "headway/kernels/row_optimizer.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

namespace headway::embedding {

/// Row in the row store; not a slot of the key index. Growth never moves rows. A key gets another row only if its
/// precision changes (see generation()), or after it was erased.
enum class RowId : std::uint32_t { kNone = 0 };

/// Result of a lookup or insertion, per key.
enum class KeyStatus : std::uint8_t {
  kFound,
  kInserted,
  kAbsent,   ///< Not in the table, and the call does not insert.
  kPending,  ///< Looked up fewer than `min_count` times, so it has no row yet.
  kNoRoom,   ///< Not inserted: the table has all the rows that it may have.
};

/// A batch of keys. All arrays are in the memory of the table's device.
struct Keys {
  std::span<std::uint64_t const> ids{};
  std::span<std::uint32_t const> tables{};  ///< (ids.size()); empty: all keys are of `table`.
  std::uint32_t table = 0;
  std::span<std::uint32_t const> counts{};  ///< (ids.size()) Lookups that each key stands for; empty: one each.
  bool are_unique = false;                  ///< The caller guarantees no duplicates; a CUDA table skips deduplication.
  /// CUDA only: device counter of the valid prefix of `ids`, at most ids.size(). Keys beyond it are kAbsent.
  std::uint32_t const* num_known = nullptr;

  [[nodiscard]] std::size_t size() const { return ids.size(); }
  [[nodiscard]] Key operator[](std::size_t i) const {
    return {.id = ids[i], .table = tables.empty() ? table : tables[i]};
  }
  /// `count` keys from `first` on; all of them are valid.
  [[nodiscard]] Keys subspan(std::size_t first, std::size_t count) const {
    return {.ids = ids.subspan(first, count),
            .tables = tables.empty() ? tables : tables.subspan(first, count),
            .table = table,
            .counts = counts.empty() ? counts : counts.subspan(first, count),
            .are_unique = are_unique};
  }
};

/// Bags of a batch, for sum pooling: bag b holds the batch positions from offsets[b] to offsets[b + 1] - 1.
struct Bags {
  std::span<std::int64_t const> offsets{};  ///< (bags + 1), from 0 to all keys; empty: each key is a bag of its own.
  std::span<float const> weights{};         ///< (keys of the batch) Factors of the embeddings; empty: 1.
};

/// CSR map from each unique key of a batch to its positions in the batch (fields as in UniqueKeys).
struct CsrMap {
  std::span<std::uint32_t const> inverse_indices{};  ///< (keys of the batch) Unique key of each position.
  std::span<std::uint32_t const>
      csr_indices{};  ///< (keys of the batch) Positions by unique key, ascending within each.
  std::span<std::uint32_t const>
      csr_offsets{};  ///< (unique keys + 1, or more) Offset of each unique key in `csr_indices`.
};

/// Order of eviction. Ties go to the lowest hash.
enum class EvictionPolicy : std::uint8_t {
  kNone,
  kLeastRecentlyUsed,    ///< Lowest step first, then lowest count.
  kLeastFrequentlyUsed,  ///< Lowest count first, then lowest step.
};

/// Options of a table. Sizes count rows of this rank.
struct TableOptions {
  static constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

  std::size_t dim = 0;  ///< Columns of an embedding; from 1 to 2^20.
  Initializer initializer = Initializer::constant(0);
  kernels::OptimizerOptions optimizer{};

  std::size_t max_rows = kUnlimited;  ///< Most rows; an insertion beyond it evicts others or gets kNoRoom.
  EvictionPolicy eviction = EvictionPolicy::kNone;
  /// Above `high_water` rows, begin_step() evicts down to `low_water`, within `eviction_batch`. So does an insertion
  /// that would exceed max_rows. A CUDA table with a `high_water` of 2^20 rows or more spreads the eviction of
  /// begin_step() over 16 steps: each takes one part of the keys, chosen by hash, down to its share of `low_water`.
  std::size_t high_water = kUnlimited, low_water = kUnlimited;
  /// Most rows that one eviction removes, unless a limit demands more. It spreads the cost of eviction over steps.
  /// kUnlimited: down to `low_water` at once. The order of eviction does not depend on it. A CUDA table that evicts
  /// in parts applies it to each part.
  std::size_t eviction_batch = kUnlimited;
  /// Rows not looked up for more than this number of steps are expired: lookups report their keys as absent, and
  /// eviction takes them first. Each step removes the expired rows of one 64th of the table. 0: rows never expire.
  std::uint32_t time_to_live = 0;

  std::uint32_t min_count = 1;  ///< Lookups after which a key gets a row (admission).
  /// Most pending keys. Above it, begin_step() forgets those of fewest lookups until three quarters are left. Ties
  /// depend on step and hash, so the same keys do not lose every time.
  std::size_t max_pending = kUnlimited;
  std::uint32_t hot_count = 0;  ///< Rows with fewer lookups (cold rows) store their embedding in bfloat16.

  std::shared_ptr<base::ThreadPool> thread_pool{};  ///< CPU tables only; none: calls run on the caller's thread alone.
};

/// Counters since the table was made.
struct TableStatistics {
  std::uint64_t inserted = 0;           ///< Rows.
  std::uint64_t erased = 0;             ///< Rows removed by erase() and clear().
  std::uint64_t evicted = 0;            ///< Rows removed by eviction.
  std::uint64_t expired = 0;            ///< Rows removed after `time_to_live`.
  std::uint64_t refused = 0;            ///< Insertions that got kNoRoom.
  std::uint64_t forgotten = 0;          ///< Pending keys removed.
  std::uint64_t promoted = 0;           ///< Rows moved from bfloat16 to float32.
  std::uint64_t demoted = 0;            ///< Rows moved from float32 to bfloat16.
  std::uint64_t dropped_gradients = 0;  ///< Gradients of keys without a row.
};

/// Present size of a table.
struct TableSize {
  std::size_t rows = 0;
  std::size_t cold_rows = 0;  ///< Rows whose embedding is bfloat16; part of `rows`.
  std::size_t pending = 0;    ///< Keys that wait for a row.
  std::size_t key_bytes = 0;  ///< Key index; on the CPU with the eviction queues.
  std::size_t row_bytes =
      0;  ///< Rows that are or were in use: embeddings, states, counts, steps; whole pages on the CPU.
};

/// Keys and all that a table stores about them, one column each, in host memory.
struct Records {
  std::vector<std::uint64_t> ids;
  std::vector<std::uint32_t> tables;
  std::vector<std::uint32_t> counts;  ///< Lookups.
  std::vector<std::uint32_t> steps;   ///< Step of the last lookup.
  std::vector<float> embeddings;      ///< (ids.size(), dim)
  std::vector<float> states;          ///< (ids.size(), state_size()) Optimizer state.

  [[nodiscard]] Keys keys() const { return {.ids = ids, .tables = tables, .counts = counts}; }
};

/// Dynamic embedding table: maps arbitrary (table, id) keys to rows. All calls take batches.
/// Out of memory (std::bad_alloc; std::length_error at 2^30 rows): a call may have processed part of its keys, each
/// completely or not at all; clear() has done nothing.
/// Threads: const calls may overlap with each other. A call that changes the table must not overlap with any other.
class Table {
 public:
  Table() = default;
  Table(Table const&) = delete;
  Table& operator=(Table const&) = delete;
  virtual ~Table() = default;

  [[nodiscard]] virtual std::size_t dim() const = 0;
  /// Optimizer state per row, in floats, as in Records::states.
  [[nodiscard]] virtual std::size_t state_size() const = 0;
  [[nodiscard]] virtual TableSize size() const = 0;
  [[nodiscard]] virtual TableStatistics statistics() const = 0;

  /// Increases whenever a row was, or on a device may have been, removed or moved. Row ids from find() stay valid while
  /// it is unchanged.
  [[nodiscard]] virtual std::uint64_t generation() const = 0;
  /// Starts `step`: later lookups belong to it. Removes a part of the expired rows (see time_to_live), rows above
  /// `high_water`, and pending keys above `max_pending`. Rows looked up in `oldest_in_use` or later are in use and
  /// stay. Steps may be any non-decreasing number, for example seconds.
  /// @throws base::UsageError if `step` is less than the one before, or less than `oldest_in_use`
  virtual void begin_step(std::uint32_t step, std::uint32_t oldest_in_use) = 0;
  /// Sets the step of a table restored from a checkpoint, before or after the import. Removes nothing: the table that
  /// wrote the records already did.
  /// @throws base::UsageError as begin_step() does
  virtual void resume_step(std::uint32_t step, std::uint32_t oldest_in_use) = 0;
  /// Looks up the rows of keys; kNone if a key has no row or its row is expired. Keys may repeat.
  /// @param rows (keys.size())
  /// @param statuses (keys.size()), or empty
  /// @throws base::UsageError if sizes do not agree; likewise below
  virtual void find(Keys const& keys, std::span<RowId> rows, std::span<KeyStatus> statuses) const = 0;
  /// Counts one lookup per key (or Keys::counts), and inserts absent keys with their initial embedding, in batch order,
  /// while there is room. If a key repeats, the occurrence that inserts it is kInserted and later ones are kFound.
  virtual void find_or_insert(Keys const& keys, std::span<RowId> rows, std::span<KeyStatus> statuses) = 0;
  /// Copies the embeddings of rows from find() or find_or_insert() for `keys`. For kNone, it writes the key's initial
  /// embedding, which is what an insertion would store.
  /// @param out (keys.size(), dim())
  virtual void gather(Keys const& keys, std::span<RowId const> rows, std::span<float> out) const = 0;
  /// Fused gather() and Deduplicator::expand(): the sum of the embeddings of each bag's keys.
  /// @param keys, rows as for gather(), of the unique keys of a batch
  /// @param inverse_indices (keys of the batch) unique key of each position; below keys.size()
  /// @param out (bags, dim())
  virtual void gather_bags(Keys const& keys, std::span<RowId const> rows,
                           std::span<std::uint32_t const> inverse_indices, Bags const& bags,
                           std::span<float> out) const = 0;
  /// One optimizer step. Gradients of keys without a row are dropped and counted (dropped_gradients).
  /// @param rows as for gather(), of the present generation(); no row may repeat
  /// @param gradients (keys.size(), dim())
  /// @throws std::invalid_argument for a rate that is not finite, or step 0
  virtual void update(Keys const& keys, std::span<RowId const> rows, std::span<float const> gradients,
                      kernels::OptimizerStep const& step) = 0;
  /// Fused Deduplicator::reduce() and update(): one step in which the gradient of a unique key is the weighted sum of
  /// the gradients of the bags that its members are in.
  /// @param keys, rows as for update(), of the unique keys of a batch
  /// @param gradients (bags, dim())
  virtual void update_bags(Keys const& keys, std::span<RowId const> rows, CsrMap const& csr, Bags const& bags,
                           std::span<float const> gradients, kernels::OptimizerStep const& step) = 0;
  /// Sets the embeddings of keys. Absent keys are inserted, regardless of `min_count`. If a key repeats, the last
  /// occurrence wins.
  /// @param embeddings (keys.size(), dim())
  virtual void insert_or_assign(Keys const& keys, std::span<float const> embeddings, std::span<KeyStatus> statuses) = 0;
  /// Removes keys; absent keys are ignored. Their rows may be reused.
  virtual void erase(Keys const& keys) = 0;
  /// Evicts rows in the order of the policy until at most `num_rows` are left. Rows in use stay.
  /// @returns number of rows removed
  /// @throws base::UsageError if the table has no policy
  virtual std::size_t evict(std::size_t num_rows) = 0;
  /// Halves all lookup counts, so that old lookups weigh less. Rows that fall below `hot_count` are demoted to
  /// bfloat16, unless they are in use.
  virtual void halve_counts() = 0;
  /// Removes all keys and frees the memory of keys and rows.
  virtual void clear() = 0;

  /// Lists the keys of virtual buckets [first_bucket, end_bucket), sorted by bucket, table and id: list() those with a
  /// row, list_pending() those that wait for one, with their counts. The other columns are empty. A virtual bucket is a
  /// range of key hashes (routing.hpp).
  [[nodiscard]] virtual Records list(std::uint32_t first_bucket, std::uint32_t end_bucket) const = 0;
  [[nodiscard]] virtual Records list_pending(std::uint32_t first_bucket, std::uint32_t end_bucket) const = 0;
  /// The records of keys. @throws base::UsageError if a key has no row
  [[nodiscard]] virtual Records export_records(Keys const& keys) const = 0;
  /// Inserts or replaces records, ignoring max_rows: the next begin_step() evicts the surplus if there is a policy. If
  /// a key repeats, the last record wins and the others have no effect.
  /// Precision of a new row: by the record's count plus the lookups that the key had while pending. An existing row is
  /// promoted as if this step had looked it up as often as the record says, and never demoted. Count and step are then
  /// those of the record.
  virtual void import_records(Records const& records, std::span<KeyStatus> statuses) = 0;
  /// Makes keys pending with exactly these counts, even above `min_count`. Gives no row and counts no lookup. Keys that
  /// have a row are ignored, so import_records() comes first. If a key repeats, the last record wins.
  /// @param records ids, tables and counts, as from list_pending(); other columns are ignored
  virtual void import_pending(Records const& records) = 0;
  /// Evicts the rows beyond max_rows after imports, in the order of the policy, or least frequently used first if there
  /// is none. No step may use a row: rows in use are not protected.
  /// @returns number of rows removed
  virtual std::size_t evict_beyond_limit() = 0;
};

/// A table in host memory.
/// @throws base::UsageError for options out of range
[[nodiscard]] std::unique_ptr<Table> make_cpu_table(TableOptions const& options);

}  // namespace headway::embedding
