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
#include <string>
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
  /// LookupMode::kRead gives zeros for ids without a row, instead of the embedding that an insertion would store.
  bool reads_unknown_as_zeros = false;
};

struct ShardedTableOptions {
  Dedup dedup = Dedup::kBoth;
  /// Threads of tables and deduplication. None: calls run on the caller's thread alone.
  std::shared_ptr<base::ThreadPool> thread_pool{};
};

/// Does a lookup count its keys and give rows to absent ones, or only read?
enum class LookupMode : std::uint8_t { kInsert, kRead };

struct BatchOptions {
  LookupMode mode = LookupMode::kInsert;
  bool keeps_embeddings = false;  ///< For weight_gradients(): a copy of the embeddings where none is needed otherwise.
};

/// Learning rates of one step: `rate` for all tables but those in `of_tables`, by number.
struct StepRates {
  double rate = 0;
  std::map<std::uint32_t, double> of_tables{};

  [[nodiscard]] double of(std::uint32_t table) const {
    auto const found = of_tables.find(table);
    return found == of_tables.end() ? rate : found->second;
  }
};

/// Dynamic embedding tables in host memory whose rows are spread over ranks, and lookups in them. sharded_table.cpp
/// explains the steps.
///
/// All ranks make the same calls in the same order, also with no ids. Several batches may be begun before the first is
/// finished. Not thread-safe. If one of these calls fails on a rank after it has begun to exchange, the others get an
/// error within the time limit of their group, and all later exchanges of this rank are a base::UsageError.
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
  [[nodiscard]] std::unique_ptr<Batch> begin(std::span<Feature const> features, BatchOptions const& options = {});
  /// Finishes a lookup: looks the keys up at their owners, and gets the embeddings. After an exception the batch cannot
  /// be used.
  /// @throws base::OperationError if a rank is lost; base::UsageError if finish() was called before; std::bad_alloc and
  ///   std::length_error of Table
  void finish(Batch& batch);
  /// Writes the embeddings of all bags of the features of a merged table, in the order of the features: the weighted
  /// sum or mean of each list, or one embedding per id. One rank that reads rows without a copy sees what they have
  /// learned since finish(); with several ranks the embeddings are those of finish().
  /// @param out (bags of the merged table, dim)
  /// @throws base::UsageError if the batch is not finished, or its rows were removed meanwhile
  void expand(Batch const& batch, std::size_t merged, std::span<float> out);
  /// Keys of a merged table that got no row on any rank, since their owner's part is full. Counted in finish() with
  /// LookupMode::kInsert; the same on all ranks.
  [[nodiscard]] std::uint64_t num_refused(Batch const& batch, std::size_t merged) const;

  /// Sends gradients to the owners of the keys, which add them in the order of ranks. They are kept until
  /// apply_gradients() or drop_gradients(); so are the rows of the batch, also after the batch is destroyed. A batch
  /// may return gradients several times, and several batches may do so before they are applied: their gradients are
  /// added.
  /// @param gradients for each merged table (bags, dim) in the order of expand(), or empty if this rank has none; must
  ///   not be freed or change before they are applied or dropped
  void return_gradients(Batch& batch, std::span<std::span<float const> const> gradients);
  /// The gradient of the weight of each id of a merged table: the dot product of its embedding and the gradient of its
  /// list, which for kMean is divided by the number of ids.
  /// @param batch begun with BatchOptions::keeps_embeddings; its embeddings are those of finish(), whatever was trained
  /// @param gradients (bags, dim) in the order of expand()
  /// @param out (ids of all features of the merged table)
  void weight_gradients(Batch const& batch, std::size_t merged, std::span<float const> gradients, std::span<float> out);
  /// Updates the rows of the keys that this rank owns by the gradients returned since the last call. Tables for which
  /// no rank has a gradient do not change. A key without a row at that time is skipped. Gradients are dropped
  /// afterwards, also after an exception.
  /// @throws base::UsageError for a rate or divisor that is not finite, or a divisor or step of 0; nothing changes then
  /// @param number of the step, from 1; used by the bias correction of Adam
  /// @param divisor of the gradients, for example the number of ranks
  void apply_gradients(std::uint64_t number, StepRates const& rates, float divisor = 1);
  void drop_gradients();
  /// Multiplies the gradients that would be applied. All ranks pass the same factor.
  void scale_gradients(float factor);
  /// L2 norm of the gradients that would be applied, over all tables and ranks, before their division. All ranks call
  /// it.
  [[nodiscard]] double gradient_norm();

 private:
  struct TableLookup;
  struct TableGradient;
  struct Gradients;

  void make_tables();
  /// @param error why this rank has no tables; empty: it has
  void expect_agreement(std::string const& error);
  /// The keys without duplicates if `stage` (kFirst or kSecond) removes them.
  [[nodiscard]] UniqueKeys unique(Keys const& keys, Dedup stage) const;
  /// May an owner have a key twice in one batch?
  [[nodiscard]] bool may_repeat() const;
  void take_keys(Batch& batch);
  void look_up(Batch& batch, std::size_t merged);
  void return_embeddings(Batch& batch);
  /// Rows of the batch's unique keys in the table as it is now. @param present memory for them, if they are found anew
  [[nodiscard]] std::span<RowId const> present_rows(TableLookup const& lookup, std::size_t merged,
                                                    std::vector<RowId>& present) const;
  void update(std::size_t merged, std::span<TableGradient* const> gradients, std::uint64_t number,
              StepRates const& rates, float divisor);
  void update_by_table(std::size_t merged, Keys const& keys, std::span<RowId const> rows,
                       std::span<float const> gradients, std::uint64_t number, StepRates const& rates);
  /// (W, dim) The sum of the gradients of each key. The first call adds them.
  std::span<float const> sums_of(TableGradient& gradient, std::size_t merged);
  /// The pending gradients of a merged table.
  [[nodiscard]] std::vector<TableGradient*> pending(std::size_t merged);
  /// The keys of some gradients of a merged table, each once, and the sum of the gradients of each.
  /// @param once memory of the keys, unless one lookup has them
  /// @param sums gets (keys, dim)
  Keys once_each(std::span<TableGradient* const> gradients, std::size_t merged, UniqueKeys& once,
                 std::vector<float>& sums);

  std::unique_ptr<Exchanger> exchanger_;
  ShardedTableOptions options_;
  std::unique_ptr<Deduplicator> deduplicator_;
  std::vector<MergedTable> merged_;
  std::vector<std::unique_ptr<Table>> tables_;
  std::vector<std::size_t> widths_;                 ///< Dim of each merged table.
  std::map<std::uint32_t, std::size_t> merged_of_;  ///< Merged table of each number.
  std::unique_ptr<KeyRoom> key_room_;
  std::uint64_t num_begun_ = 0;  ///< Batches.
  std::uint32_t step_ = 0;
  bool is_broken_ = false;                                      ///< An exchange has failed: the ranks are out of step.
  std::shared_ptr<std::multiset<std::uint32_t>> steps_in_use_;  ///< Steps of the batches that exist.
  std::vector<std::unique_ptr<Gradients>> pending_;             ///< In the order of return_gradients().
};

/// See ShardedTable::begin(). A batch that is destroyed before finish() waits until all ranks have begun it. It must
/// not outlive the group of its exchanger.
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
  std::shared_ptr<State> state_;  ///< Shared with the gradients of the batch.
};

}  // namespace headway::embedding
