#pragma once

#include "headway/embedding/initializer.hpp"
#include "headway/embedding/key.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>

namespace headway::embedding {

/// A row of a table, which stays where it is until its key is erased; not a slot of the key structure.
enum class RowId : std::uint32_t { kNone = 0 };

/// What became of a key of a batch.
enum class KeyStatus : std::uint8_t {
  kFound,
  kInserted,
  kAbsent,  ///< It is not there, and was not to be inserted.
  kNoRoom,  ///< It was to be inserted, but the table has all the rows that it may have.
};

/// The keys of a batch, ids and tables in memory of the table's device.
struct Keys {
  std::span<std::uint64_t const> ids{};
  std::span<std::uint32_t const> tables{};  ///< (ids.size()); empty: `table` is that of all.
  std::uint32_t table = 0;

  [[nodiscard]] std::size_t size() const { return ids.size(); }
  [[nodiscard]] Key operator[](std::size_t i) const {
    return {.id = ids[i], .table = tables.empty() ? table : tables[i]};
  }
};

struct TableOptions {
  std::size_t dim = 0;  ///< Values of a vector, float32; from 1 to 2^20.
  Initializer initializer = Initializer::constant(0);
  std::size_t max_rows = std::numeric_limits<std::size_t>::max();  ///< On this rank.
  int num_threads = 1;                                             ///< Of a table on the CPU.
};

/// Counts since the table was made.
struct TableStatistics {
  std::uint64_t inserted = 0;
  std::uint64_t erased = 0;
  std::uint64_t refused = 0;  ///< Insertions for which there was no room.
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
  [[nodiscard]] virtual std::size_t size() const = 0;
  [[nodiscard]] virtual TableStatistics statistics() const = 0;

  /// Where the rows of keys are; kNone where there is none. Keys may repeat.
  /// @param rows (keys.size())
  /// @param statuses (keys.size()), or empty
  /// @throws comm::UsageError if sizes do not agree; likewise below
  virtual void find(Keys const& keys, std::span<RowId> rows, std::span<KeyStatus> statuses) const = 0;
  /// The same after keys that are not there are inserted with their initial vector, in the order of the batch as long
  /// as there is room. Of a key that repeats the first is kInserted, and all others kFound.
  virtual void find_or_insert(Keys const& keys, std::span<RowId> rows, std::span<KeyStatus> statuses) = 0;
  /// The vectors of rows that find() or find_or_insert() gave for `keys`; where there is none the initial vector of the
  /// key, so that a key has the same one before it is inserted.
  /// @param out (keys.size(), dim())
  virtual void gather(Keys const& keys, std::span<RowId const> rows, std::span<float> out) const = 0;
  /// Sets the vectors of keys, which are inserted where they are not there. Of a key that repeats the last one holds.
  /// @param vectors (keys.size(), dim())
  virtual void insert_or_assign(Keys const& keys, std::span<float const> vectors, std::span<KeyStatus> statuses) = 0;
  /// Removes keys; those that are not there are passed over. Their rows may be given to others.
  virtual void erase(Keys const& keys) = 0;
  /// Removes all keys, and gives the memory of keys and rows back.
  virtual void clear() = 0;
};

/// A table in memory of the host.
/// @throws comm::UsageError for options out of their range
[[nodiscard]] std::unique_ptr<Table> make_cpu_table(TableOptions const& options);

}  // namespace headway::embedding
