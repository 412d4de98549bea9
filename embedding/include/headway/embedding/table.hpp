#pragma once

#include "headway/embedding/initializer.hpp"
#include "headway/embedding/key.hpp"
#include "headway/embedding/workers.hpp"
#include "headway/kernels/row_optimizer.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

namespace headway::embedding {

/// A row of a table, which stays where it is until its key is erased; not a slot of the key structure.
enum class RowId : std::uint32_t { kNone = 0 };

/// What became of a key of a batch.
enum class KeyStatus : std::uint8_t {
  kFound,
  kInserted,
  kAbsent,   ///< It is not there, and was not to be inserted.
  kPending,  ///< It was not looked up often enough to get a row yet.
  kNoRoom,   ///< It was to be inserted, but the table has all the rows that it may have.
};

/// The keys of a batch, ids and tables in memory of the table's device.
struct Keys {
  std::span<std::uint64_t const> ids{};
  std::span<std::uint32_t const> tables{};  ///< (ids.size()); empty: `table` is that of all.
  std::uint32_t table = 0;
  std::span<std::uint32_t const> counts{};  ///< (ids.size()) Of lookups that each stands for; empty: one each.
  bool are_unique = false;                  ///< None comes twice: a table on a device need not look for duplicates.
  /// On a device: how many of `ids` there are, if less, where only the device knows. Those beyond are kAbsent.
  std::uint32_t const* num_known = nullptr;

  [[nodiscard]] std::size_t size() const { return ids.size(); }
  [[nodiscard]] Key operator[](std::size_t i) const {
    return {.id = ids[i], .table = tables.empty() ? table : tables[i]};
  }
};

/// Keys of a batch whose vectors are added up: those from offsets[b] to offsets[b + 1] are of bag b.
struct Bags {
  std::span<std::int64_t const> offsets{};  ///< (bags + 1), from 0 to all keys; empty: each key is a bag of its own.
  std::span<float const> weights{};         ///< (keys of the batch) What vectors are multiplied with; empty: 1.
};

/// Of the different keys of a batch, which keys of it they stand for.
struct Members {
  std::span<std::uint32_t const> numbers{};  ///< (keys of the batch) Which different key each is.
  std::span<std::uint32_t const>
      members{};                            ///< (keys of the batch) By different key, and of each in the batch's order.
  std::span<std::uint32_t const> begins{};  ///< (different keys + 1, or more) Of each one's in `members`.
};

/// Which rows go first where a table has too many. Of equal ones those of the lowest hash.
enum class EvictionPolicy : std::uint8_t {
  kNone,
  kLeastRecentlyUsed,    ///< By step, then by count.
  kLeastFrequentlyUsed,  ///< By count, then by step.
};

struct TableOptions {
  static constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

  std::size_t dim = 0;  ///< Values of a vector; from 1 to 2^20.
  Initializer initializer = Initializer::constant(0);
  kernels::OptimizerOptions optimizer{};

  std::size_t max_rows = kUnlimited;  ///< On this rank.
  EvictionPolicy eviction = EvictionPolicy::kNone;
  /// With more rows a step begins with evicting rows until `low_water` are left, as far as `eviction_batch` lets it; so
  /// does an insertion that would go beyond max_rows.
  std::size_t high_water = kUnlimited, low_water = kUnlimited;
  /// An eviction goes no further than this many rows, or than it must if that is more: so each step pays for about what
  /// it inserts. kUnlimited: down to `low_water` at once. The order in which rows go is the same.
  std::size_t eviction_batch = kUnlimited;
  /// Rows not looked up for more steps than these are expired: their keys are absent at lookup, and the rows are
  /// evicted first. Each step removes those of one 64th of the table, chosen by the step. 0: rows never expire.
  std::uint32_t time_to_live = 0;

  std::uint32_t min_count = 1;  ///< Lookups after which a key gets a row.
  /// Keys that wait for one. With more of them a step begins with forgetting those of fewest lookups until three
  /// quarters of this number are left. Of equal ones the step and the hash decide, so that each may stay at times.
  std::size_t max_pending = kUnlimited;
  std::uint32_t hot_count = 0;  ///< Rows of fewer lookups have their vector in bfloat16.

  std::shared_ptr<WorkerPool> workers{};  ///< Of a table on the CPU; none: calls run in their caller alone.
};

/// Counts since the table was made.
struct TableStatistics {
  std::uint64_t inserted = 0;
  std::uint64_t erased = 0;     ///< By erase() and clear().
  std::uint64_t evicted = 0;    ///< As there were too many.
  std::uint64_t expired = 0;    ///< As their time was over.
  std::uint64_t refused = 0;    ///< Insertions for which there was no room.
  std::uint64_t forgotten = 0;  ///< Keys that waited for a row.
  std::uint64_t promoted = 0;   ///< From bfloat16 to float32.
  std::uint64_t demoted = 0;
  std::uint64_t dropped_gradients = 0;  ///< Of keys without a row.
};

/// What a table has at present.
struct TableSize {
  std::size_t rows = 0;
  std::size_t cold_rows = 0;  ///< Those of them whose vectors are bfloat16.
  std::size_t pending = 0;    ///< Keys that wait for a row.
  std::size_t key_bytes = 0;  ///< On the CPU with the queues of eviction.
  std::size_t row_bytes = 0;  ///< Of rows that are, or were, in use, in whole pages on the CPU: vectors and notes.
};

/// Keys and all that a table knows of them, a column each.
struct Records {
  std::vector<std::uint64_t> ids;
  std::vector<std::uint32_t> tables;
  std::vector<std::uint32_t> counts;
  std::vector<std::uint32_t> steps;
  std::vector<float> vectors;  ///< (ids.size(), dim)
  std::vector<float> states;   ///< (ids.size(), state_size())

  [[nodiscard]] Keys keys() const { return {.ids = ids, .tables = tables, .counts = counts}; }
};

/// Vectors by key, of any number. Everything goes in batches. Where memory runs out (std::bad_alloc; std::length_error
/// at 2^30 rows) a call may have done a part of its keys, each wholly or not at all; clear() then has done nothing.
/// Calls that only read may overlap with each other; one that changes the table must not overlap with any.
class Table {
 public:
  Table() = default;
  Table(Table const&) = delete;
  Table& operator=(Table const&) = delete;
  virtual ~Table() = default;

  [[nodiscard]] virtual std::size_t dim() const = 0;
  /// Floats of a row's state in Records.
  [[nodiscard]] virtual std::size_t state_size() const = 0;
  [[nodiscard]] virtual TableSize size() const = 0;
  [[nodiscard]] virtual TableStatistics statistics() const = 0;

  /// Grows whenever a row is given up or moved, or may have been where only a device knows: rows that find() gave are
  /// good as long as it is the same.
  [[nodiscard]] virtual std::uint64_t generation() const = 0;
  /// Lookups from now on belong to `step`, and rows that were looked up in `oldest_in_use` or later are not removed. A
  /// step may be any number that grows: also seconds. Rows that are too many or too old are removed.
  /// @throws comm::UsageError if a step is less than the one before, or less than `oldest_in_use`
  virtual void begin_step(std::uint32_t step, std::uint32_t oldest_in_use) = 0;
  /// Continues at `step` of a table whose records are or will be imported. Removes nothing: the table that wrote them
  /// already did.
  /// @throws comm::UsageError as begin_step() does
  virtual void resume_step(std::uint32_t step, std::uint32_t oldest_in_use) = 0;
  /// The places of the rows of keys; kNone where there is none or it is expired. Keys may repeat.
  /// @param rows (keys.size())
  /// @param statuses (keys.size()), or empty
  /// @throws comm::UsageError if sizes do not agree; likewise below
  virtual void find(Keys const& keys, std::span<RowId> rows, std::span<KeyStatus> statuses) const = 0;
  /// The same after keys that are not there are inserted with their initial vector, in the order of the batch as long
  /// as there is room. Of a key that repeats the first is kInserted, and all others kFound. The lookups are counted.
  virtual void find_or_insert(Keys const& keys, std::span<RowId> rows, std::span<KeyStatus> statuses) = 0;
  /// The vectors of rows that find() or find_or_insert() gave for `keys`; where there is none the initial vector of the
  /// key, so that a key has the same one before it is inserted.
  /// @param out (keys.size(), dim())
  virtual void gather(Keys const& keys, std::span<RowId const> rows, std::span<float> out) const = 0;
  /// What gather() and then Deduplicator::hand_out() would give: for each bag the sum of the vectors of its keys.
  /// @param keys, rows as for gather(), of the different keys of a batch
  /// @param numbers (keys of the batch) which of them each is; below keys.size()
  /// @param out (bags, dim())
  virtual void gather_bags(Keys const& keys, std::span<RowId const> rows, std::span<std::uint32_t const> numbers,
                           Bags const& bags, std::span<float> out) const = 0;
  /// One step of the optimizer. What belongs to no row is passed over and counted.
  /// @param rows as for gather(), of this generation; no row may come twice
  /// @param gradients (keys.size(), dim())
  /// @throws std::invalid_argument for a rate that is not finite, or step 0
  virtual void update(Keys const& keys, std::span<RowId const> rows, std::span<float const> gradients,
                      kernels::OptimizerStep const& step) = 0;
  /// What Deduplicator::add_up() and then update() would do: one step with the sums of what the bags of the keys'
  /// members have.
  /// @param keys, rows as for update(), of the different keys of a batch
  /// @param gradients (bags, dim())
  virtual void update_bags(Keys const& keys, std::span<RowId const> rows, Members const& members, Bags const& bags,
                           std::span<float const> gradients, kernels::OptimizerStep const& step) = 0;
  /// Sets the vectors of keys, which are inserted where they are not there, however rarely they were looked up. Of a
  /// key that repeats the last one holds.
  /// @param vectors (keys.size(), dim())
  virtual void insert_or_assign(Keys const& keys, std::span<float const> vectors, std::span<KeyStatus> statuses) = 0;
  /// Removes keys; those that are not there are passed over. Their rows may be given to others.
  virtual void erase(Keys const& keys) = 0;
  /// Removes rows as the policy of eviction has it, until there are no more than `num_rows`; none that is in use.
  /// @returns how many
  /// @throws comm::UsageError if the table has no policy
  virtual std::size_t evict(std::size_t num_rows) = 0;
  /// Halves all counts, so that old lookups weigh less; rows that thereby become cold give up their float32 unless they
  /// are in use.
  virtual void halve_counts() = 0;
  /// Removes all keys, and gives the memory of keys and rows back.
  virtual void clear() = 0;

  /// The keys of these virtual buckets, by bucket, table and id; of those that wait for a row the counts too. Columns
  /// besides are empty.
  [[nodiscard]] virtual Records list(std::uint32_t first_bucket, std::uint32_t end_bucket) const = 0;
  [[nodiscard]] virtual Records list_pending(std::uint32_t first_bucket, std::uint32_t end_bucket) const = 0;
  /// All that is known of keys. @throws comm::UsageError if one has no row
  [[nodiscard]] virtual Records export_records(Keys const& keys) const = 0;
  /// Puts keys in, or replaces what was known of them, with no regard to max_rows: what is too much goes when the next
  /// step begins, if there is a policy. Of a key that repeats the last one holds, as if the others were not there.
  /// The precision of a new row follows from the record's count and, if its key waited for a row, the lookups until
  /// then, added up. A row that is there is promoted as if it were looked up in this step as often as the record says,
  /// and never demoted. In both cases count and step are then those of the record alone.
  virtual void import_records(Records const& records, std::span<KeyStatus> statuses) = 0;
  /// Makes keys wait for a row with exactly these counts, however large: gives no row and counts no lookup. Keys that
  /// have a row keep it and are passed over, so rows must be imported before. Of a key that repeats the last one holds.
  /// @param records ids, tables and counts, as of list_pending(); other columns are ignored
  virtual void import_pending(Records const& records) = 0;
  /// After imports, when no step uses a row: evicts the rows beyond max_rows in the order of the policy, or those of
  /// fewest lookups if there is none.
  /// @returns how many
  virtual std::size_t evict_beyond_limit() = 0;
};

/// A table in memory of the host.
/// @throws comm::UsageError for options out of their range
[[nodiscard]] std::unique_ptr<Table> make_cpu_table(TableOptions const& options);

}  // namespace headway::embedding
