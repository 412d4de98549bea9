// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/thread_pool.hpp"
#include "headway/embedding/deduplicator.hpp"
#include "headway/embedding/exchanger.hpp"
#include "headway/embedding/features.hpp"
#include "headway/embedding/table.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

namespace headway::embedding {

struct KeyRoom;

/// Stages at which a lookup removes duplicates: before keys are sent, and at their owner.
enum class Dedup : std::uint8_t { kNone, kFirst, kSecond, kBoth };

/// Tables that share rows of one width and one set of rules. The numbers of the tables are part of the keys, so equal
/// ids of two tables have rows of their own.
struct MergedTable {
  TableOptions options;               ///< Sizes count rows of this rank.
  std::vector<std::uint32_t> tables;  ///< Numbers that features name (Feature::table).
};

struct ShardedTableOptions {
  Dedup dedup = Dedup::kBoth;
  /// Threads of tables and deduplication. None: calls run on the caller's thread alone.
  std::shared_ptr<base::ThreadPool> thread_pool{};
};

/// Does a lookup count its keys and give rows to absent ones, or only read?
enum class LookupMode : std::uint8_t { kInsert, kRead };

/// Dynamic embedding tables in host memory whose rows are spread over ranks, and lookups in them. sharded_table.cpp
/// explains the steps.
///
/// All ranks make the same calls in the same order, also with no ids. Several batches may be begun before the first is
/// finished. Not thread-safe.
class ShardedTable {
 public:
  /// State of the lookup of one batch. The rows that it has looked up with kInsert are not evicted while it exists.
  class Batch;

  /// Makes this rank's part of the tables.
  /// @throws base::UsageError for options out of range, a table that is merged twice, or ranks that disagree (the error
  ///   names what both have); base::OperationError if a rank is lost
  ShardedTable(std::span<MergedTable const> tables, std::unique_ptr<Exchanger> exchanger,
               ShardedTableOptions options = {});
  ~ShardedTable();
  ShardedTable(ShardedTable const&) = delete;
  ShardedTable& operator=(ShardedTable const&) = delete;

  [[nodiscard]] std::size_t num_tables() const { return tables_.size(); }
  /// This rank's rows of a merged table, for statistics and checkpoints.
  [[nodiscard]] Table& table(std::size_t merged) { return *tables_[merged]; }

  /// Starts step `step` in all tables. See Table::begin_step(); rows of batches that exist are in use.
  void begin_step(std::uint32_t step);

  /// Starts a lookup: joins features, removes duplicates, sorts keys by owner and starts to send them. Does not wait.
  /// The features may be freed afterwards.
  /// @throws base::UsageError if lengths do not add up to the ids, or a feature names a table that is not there
  [[nodiscard]] std::unique_ptr<Batch> begin(std::span<Feature const> features, LookupMode mode = LookupMode::kInsert);
  /// Finishes a lookup: looks the keys up at their owners, and gets the embeddings. After an exception the batch cannot
  /// be used.
  /// @throws base::OperationError if a rank is lost
  void finish(Batch& batch);
  /// Writes the embeddings of all bags of the features of a merged table, in the order of the features: the weighted
  /// sum or mean of each list, or one embedding per id.
  /// @param out (bags of the merged table, dim)
  /// @throws base::UsageError if the batch is not finished, or its rows were removed meanwhile
  void expand(Batch const& batch, std::size_t merged, std::span<float> out);
  /// Sends gradients to the owners of the keys, which add them in the order of ranks.
  /// @param gradients for each merged table (bags, dim) in the order of expand(), or empty if this rank has none; must
  ///   not change before apply_gradients()
  void return_gradients(Batch& batch, std::span<std::span<float const> const> gradients);
  /// Updates the rows of the keys that this rank owns. Tables for which no rank has a gradient do not change.
  /// @param scale factor of the gradients, for example 1 / ranks
  void apply_gradients(Batch& batch, kernels::OptimizerStep const& step, float scale = 1);

 private:
  struct TableLookup;

  void expect_agreement(std::span<MergedTable const> tables);
  /// The keys without duplicates if `stage` (kFirst or kSecond) removes them.
  [[nodiscard]] UniqueKeys unique(Keys const& keys, Dedup stage) const;
  /// May an owner have a key twice in one batch?
  [[nodiscard]] bool may_repeat() const;
  void take_keys(Batch& batch);
  static void look_up(TableLookup& lookup, Table& table, LookupMode mode);
  void return_embeddings(Batch& batch);
  void update(TableLookup& lookup, Table& table, kernels::OptimizerStep const& step, float scale);

  std::unique_ptr<Exchanger> exchanger_;
  ShardedTableOptions options_;
  std::unique_ptr<Deduplicator> deduplicator_;
  std::vector<std::unique_ptr<Table>> tables_;
  std::vector<std::size_t> widths_;                 ///< Dim of each merged table.
  std::map<std::uint32_t, std::size_t> merged_of_;  ///< Merged table of each number.
  std::unique_ptr<KeyRoom> key_room_;
  std::uint64_t num_begun_ = 0;  ///< Batches.
  std::uint32_t step_ = 0;
  std::shared_ptr<std::multiset<std::uint32_t>> steps_in_use_;  ///< Steps of the batches that exist.
};

/// See ShardedTable::begin().
class ShardedTable::Batch {
 public:
  ~Batch();
  Batch(Batch const&) = delete;
  Batch& operator=(Batch const&) = delete;

  /// Bags of all features of a merged table.
  [[nodiscard]] std::size_t num_bags(std::size_t merged) const;

 private:
  friend class ShardedTable;
  Batch();

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace headway::embedding
