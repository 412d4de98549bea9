// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/thread_pool.hpp"
#include "headway/embedding/batch_device.hpp"
#include "headway/embedding/exchanger.hpp"
#include "headway/embedding/features.hpp"
#include "headway/embedding/table.hpp"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace headway::embedding {

struct KeySplit;    // Keys that two steps share (src/exchange/lookup_state.hpp).
class RowExchange;  // Exchange of rows (src/exchange/row_exchange.hpp).
struct SentRows;    // Rows for an exchange (src/exchange/row_exchange.hpp).
struct KeyRoom;     // Capacities of key messages between ranks (src/exchange/key_exchange.hpp).
class BatchOrder;   // Batches that have not read their rows (src/exchange/lookup_state.hpp).
class StepsInUse;   // Steps of the batches that exist (src/exchange/lookup_state.hpp).

enum class LookupStage : std::uint8_t;  // In src/exchange/lookup_state.hpp.

/// Stages at which a lookup removes duplicates: before keys are sent (first), and at their owner (second).
enum class Dedup : std::uint8_t { kNone, kFirst, kSecond, kBoth };

/// Tables with equal options, which share storage and exchanges. A key contains the id of its table, so equal ids of
/// two tables have rows of their own.
struct MergedTable {
  TableOptions options;               ///< Sizes count rows of this rank.
  std::vector<std::uint32_t> tables;  ///< Ids of the tables, as in Feature::table and Key::table.
  /// LookupMode::kRead gives zeros for ids without a row, instead of the embedding that an insertion would store.
  bool reads_unknown_as_zeros = false;
  std::vector<std::string> names{};         ///< (tables) For people, or empty.
  std::shared_ptr<Table> existing_table{};  ///< Use this table, which has these options; none: make one.
};

struct ShardedTableOptions {
  Dedup dedup = Dedup::kBoth;
  /// Host memory only: threads of tables and deduplication. None: calls run on the caller's thread alone.
  std::shared_ptr<base::ThreadPool> thread_pool{};
  std::shared_ptr<BatchDevice> device{};  ///< Memory of tables and batches; none: host memory.
  /// Exchanges embeddings, such as another channel of the group; none: the exchanger of the constructor. Several ranks
  /// need it for poll(): batches then answer each other's keys in one order, whichever keys arrive first. Such tables
  /// read nothing ahead.
  std::shared_ptr<Exchanger> row_exchanger{};
  /// With `row_exchanger`: keys that a rank sends another one in its first message, which has room for as many. More go
  /// in a second message. Equal on all ranks. Without `row_exchanger` the room grows with the batches.
  std::size_t key_room = 1024;
};

/// Does a lookup count its keys and give rows to absent ones, or only read?
enum class LookupMode : std::uint8_t { kInsert, kRead };

struct BatchOptions {
  LookupMode mode = LookupMode::kInsert;
  bool keeps_embeddings = false;  ///< Keep a copy, even if expand() needs none: see embeddings(), weight_gradients().
  bool counts_refused = true;     ///< With kInsert: count the keys that get no row, for num_refused().
  bool masks_unknown = true;      ///< With kRead: do as MergedTable::reads_unknown_as_zeros says; false: ignore it.
};

/// Gradients of the bags of a merged table.
struct GradientRows {
  Block<float const> values{};  ///< (bags, dim) in the order of expand(), or empty if this rank has none.
  bool is_there = false;        ///< There is a gradient, also if `values` is empty as the batch has no bags.
  /// May the caller change the memory before they are applied or dropped? Then they are added at once.
  bool may_change = false;
};

/// Keys and bytes of this rank's lookups since the tables were made. Bytes that a rank sends to itself do not count.
struct Traffic {
  std::uint64_t keys = 0;            ///< Keys of all batches.
  std::uint64_t keys_routed = 0;     ///< After the first deduplication.
  std::uint64_t keys_received = 0;   ///< By this rank as an owner.
  std::uint64_t keys_found = 0;      ///< After the second deduplication; these are looked up.
  std::uint64_t id_bytes = 0;        ///< Sent: ids, tables and counts.
  std::uint64_t vector_bytes = 0;    ///< Sent by owners: embeddings.
  std::uint64_t gradient_bytes = 0;  ///< Sent to owners.
  std::uint64_t keys_ahead = 0;      ///< Part of keys_found: keys of batches of read_ahead().
  std::uint64_t collisions = 0;      ///< Part of keys_ahead: the step before has them, too, so they were read late.
};

/// Learning rates of one step: `rate` for all tables but those in `of_tables`, by table id.
struct StepRates {
  double rate = 0;
  std::map<std::uint32_t, double> of_tables{};

  [[nodiscard]] double of(std::uint32_t table) const {
    auto const found = of_tables.find(table);
    return found == of_tables.end() ? rate : found->second;
  }
};

/// One optimizer step of a merged table.
struct TableStep {
  std::uint64_t number = 0;  ///< From 1; used by the bias correction of Adam.
  StepRates rates{};
  float divisor = 1;  ///< Divides the gradients.
};

/// Dynamic embedding tables whose rows are spread over ranks, and lookups in them, in host memory or that of a CUDA
/// device. sharded_table.cpp explains the steps.
///
/// Arrays are in the memory of the device; features too. On a CUDA device calls are ordered on the caller's stream. One
/// rank never waits for the device; several wait once a batch, for the sizes of exchanges.
///
/// Parameters `merged` are indices into the merged tables of the constructor. Shapes: U unique keys of this rank's
/// batch.
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
  /// Replaces a table by one with the same options. Rows of batches that exist are found anew.
  void replace_table(std::size_t merged, std::shared_ptr<Table> table);

  /// Starts step `step` in all tables. See Table::begin_step(); rows of batches that exist are in use. Drains what is
  /// deferred before.
  void begin_step(std::uint32_t step);

  /// Starts a lookup: joins features, removes duplicates, sorts keys by owner and starts to send them. Does not wait.
  /// The features may be freed afterwards.
  /// @throws base::UsageError if lengths do not add up to the ids, or a feature names a table that is not there
  [[nodiscard]] std::unique_ptr<Batch> begin(std::span<Feature const> features, BatchOptions const& options = {});
  /// Starts another lookup of the features of a batch, with the same options.
  [[nodiscard]] std::unique_ptr<Batch> begin_again(Batch const& batch);
  [[nodiscard]] bool is_finished(Batch const& batch) const;
  /// The stages of finish(), for callers that work between them. Each does what is left of those before. start_keys()
  /// waits for the sizes of messages if these need a round of their own (Exchanger::takes_capacities()), look_up() for
  /// the keys, and start_embeddings() for nothing.
  void start_keys(Batch& batch);
  void look_up(Batch& batch);
  void start_embeddings(Batch& batch);
  /// Finishes a lookup: looks the keys up at their owners, and gets the embeddings. After an exception the batch cannot
  /// be used.
  /// @throws base::OperationError if a rank is lost; base::UsageError if finish() was called before; std::bad_alloc and
  ///   std::length_error of Table
  void finish(Batch& batch);
  /// Takes a lookup as far as it goes without a wait: finish(), for a caller that does other work meanwhile. Several
  /// batches may be polled, in any order. A batch sends its embeddings only after those that were begun before it, so
  /// all ranks have to poll all batches, or finish them in the order of begin(). Several ranks need
  /// ShardedTableOptions::row_exchanger, and an exchanger that takes capacities, in host memory.
  /// @returns whether it is finished
  /// @throws as finish(); base::UsageError also if several ranks lack what they need
  [[nodiscard]] bool poll(Batch& batch);
  /// Writes the embeddings of all bags of the features of a merged table, in the order of the features: the weighted
  /// sum or mean of each list, or one embedding per id. One rank that reads rows without a copy sees what they have
  /// learned since finish(); with several ranks the embeddings are those of finish().
  /// @param out (bags of the merged table, dim)
  /// @throws base::UsageError if the batch is not finished, or (in host memory) its rows were removed meanwhile. On a
  ///   CUDA device a key whose row was removed gives its initial embedding
  void expand(Batch const& batch, std::size_t merged, std::span<float> out);
  /// Keys of a merged table that got no row on any rank, since their owner's part is full. Counted in finish() with
  /// LookupMode::kInsert; the same on all ranks.
  [[nodiscard]] std::uint64_t num_refused(Batch const& batch, std::size_t merged) const;
  /// The same of this rank alone, from look_up() to start_embeddings(); with one rank also afterwards. (merged tables)
  /// in the memory of the device, empty if they are not counted.
  [[nodiscard]] Block<float> const& own_refused(Batch const& batch) const;

  /// Reads batches of the next step while the present step computes, except the rows that it will update. These follow
  /// from apply_gradients() on. Results have the bits of lookups after the update. Applies what was deferred before.
  /// One rank reads nothing ahead. All ranks call it with as many batches, after begin_step() of the next step, and
  /// before the last return_gradients() of the present one.
  /// @param next begun with LookupMode::kInsert, and not looked up
  /// @param present all batches of the present step, finished
  /// @throws base::UsageError if batches are in another stage or given twice, those read ahead before are not finished,
  ///   or gradients of other batches are pending. Nothing is changed then
  /// On a CUDA device it may run on another stream than the other calls, which wait for it. That stream has to wait for
  /// the calls of finish() and return_gradients() before.
  void read_ahead(std::span<Batch* const> next, std::span<Batch* const> present);
  /// Waits for what read_ahead() has sent, on a CUDA device also the host. Without it return_gradients() does so.
  void take_ahead();
  /// Throws what read_ahead() would throw, before it or begin_step() have changed anything.
  void expect_may_read_ahead(std::span<Batch* const> next, std::span<Batch* const> present) const;
  /// Gives up the batches that were read ahead and are not finished: they cannot be used. All ranks call it.
  void forget_ahead();
  /// Are there batches that were read ahead, and are not finished?
  [[nodiscard]] bool has_ahead() const;
  /// Applies the gradients that apply_gradients() has deferred. All ranks call it. Without it they are applied by the
  /// next read_ahead(), lookup or apply_gradients().
  void drain();
  [[nodiscard]] bool has_deferred() const { return deferred_ != nullptr; }

  /// A lookup that has not begun to look up will insert and count nothing.
  void read_only(Batch& batch);
  /// Frees embeddings that expand() no longer needs. They stay with BatchOptions::keeps_embeddings.
  void forget_embeddings(Batch& batch);
  /// (U, dim) The embeddings of the unique keys of a merged table.
  /// @param batch finished; of one rank, also begun with BatchOptions::keeps_embeddings
  [[nodiscard]] Block<float> const& embeddings(Batch const& batch, std::size_t merged) const;
  [[nodiscard]] UniqueBlocks const& unique_keys(Batch const& batch, std::size_t merged) const;

  /// Sends gradients to the owners of the keys, which add them in the order of ranks. They are kept until
  /// apply_gradients() or drop_gradients(); so are the rows of the batch, also after the batch is destroyed. A batch
  /// may return gradients several times, and several batches may do so before they are applied: their gradients are
  /// added.
  /// @param gradients for each merged table
  /// @param factor of the gradients
  void return_gradients(Batch& batch, std::span<GradientRows const> gradients, float factor = 1);
  /// The same for memory that the caller keeps, and does not change, until the gradients are applied or dropped.
  void return_gradients(Batch& batch, std::span<std::span<float const> const> gradients);
  /// The two halves of return_gradients(). The first does not wait.
  void start_gradients(Batch& batch, std::span<GradientRows const> gradients, float factor = 1);
  /// @returns for each merged table (1) in the memory of the device: 1 if all sums that this rank has sent are finite,
  ///   or else NaN; empty if it had none, or is alone. After read_ahead() (ranks), of all ranks
  std::vector<Block<float>> finish_gradients(Batch& batch);
  /// Does finish_gradients() leave the gradients of a merged table in the caller's memory, to add them later?
  [[nodiscard]] bool reads_gradients_later(Batch const& batch, std::size_t merged) const;
  /// The gradient of the weight of each id of a merged table: the dot product of its embedding and the gradient of its
  /// list, which for kMean is divided by the number of ids.
  /// Host memory only.
  /// @param batch begun with BatchOptions::keeps_embeddings; its embeddings are those of finish(), whatever was trained
  /// @param gradients (bags, dim) in the order of expand()
  /// @param out (ids of all features of the merged table)
  void weight_gradients(Batch const& batch, std::size_t merged, std::span<float const> gradients, std::span<float> out);
  /// Updates the rows of the keys that this rank owns by the gradients returned since the last call. Tables for which
  /// no rank has a gradient do not change. A key without a row at that time is skipped. Gradients are dropped
  /// afterwards, also after an exception.
  /// After read_ahead() it updates the rows that the next step needs, sends these, and defers the others; see drain().
  /// @throws base::UsageError for a rate or divisor that is not finite, or a divisor or step of 0; nothing changes then
  /// @param number of the step, from 1; used by the bias correction of Adam
  /// @param divisor of the gradients, for example the number of ranks
  void apply_gradients(std::uint64_t number, StepRates const& rates, float divisor = 1);
  /// The same with a step for each merged table.
  void apply_gradients(std::span<TableStep const> steps);
  void drop_gradients();
  /// Has this rank gradients that apply_gradients() would apply?
  [[nodiscard]] bool has_gradients(std::size_t merged) const;
  /// Adds the pending gradients of a merged table now. Their memory may change afterwards.
  /// @param first gradients before this one, in the order of finish_gradients(), are left out of the result
  /// @returns the keys and sums of each gradient; they live until the gradients are applied or dropped
  std::vector<KeyValues> add_gradients(std::size_t merged, std::size_t first = 0);
  /// Calls of finish_gradients() since the last apply_gradients() or drop_gradients().
  [[nodiscard]] std::size_t num_pending() const { return pending_.size(); }
  /// Multiplies the gradients that would be applied. All ranks pass the same factor.
  void scale_gradients(float factor);
  /// The same for a merged table, with a factor in the memory of the device.
  void scale_gradients(std::size_t merged, float const* factor);
  /// L2 norm of the gradients that would be applied, over all tables and ranks, before their division. All ranks call
  /// it. Waits for the device.
  [[nodiscard]] double gradient_norm();
  /// (1) Sum of the squares of this rank's gradients of a merged table, in the memory of the device.
  [[nodiscard]] Block<double> gradient_squares(std::size_t merged);

  /// Counters. Waits for the device.
  [[nodiscard]] Traffic traffic() const;

 private:
  struct TableLookup;
  struct TableGradient;
  struct Gradients;
  struct Ahead;
  struct Deferred;

  void make_tables();
  /// @param error, failure why this rank has no tables; null: it has
  void expect_agreement(std::string const& error, std::exception_ptr const& failure);
  /// @throws base::UsageError if other tables have begun the batch
  void expect_own(Batch const& batch) const;
  [[nodiscard]] bool is_alone() const { return exchanger_->size() == 1; }
  /// Unique keys, if the options remove duplicates at `stage` (kFirst or kSecond); else each key as its own unique key.
  [[nodiscard]] UniqueBlocks unique(Keys const& keys, Dedup stage) const;
  /// May an owner have a key twice in one batch?
  [[nodiscard]] bool may_repeat() const;
  /// Goes through the stages of a batch up to `stage`.
  void advance(Batch& batch, LookupStage stage);
  /// Sends the unique keys of a new batch, and counts it.
  void start(Batch& batch);
  void send_keys(Batch& batch);
  void take_sizes(Batch& batch);
  void take_keys(Batch& batch);
  void receive_keys(Batch& batch);
  /// @param refused gets the number of keys that get no row; may be null
  void look_up(Batch& batch, std::size_t merged, float* refused);
  /// Finds the rows of the lookup's keys, and inserts keys that have none.
  void insert(TableLookup& lookup, std::size_t merged, float* refused);
  /// Embeddings of the received keys of a merged table, or nothing if they are read from the rows.
  [[nodiscard]] Block<float> gather(Batch const& batch, std::size_t merged) const;
  void send_embeddings(Batch& batch);
  void take_embeddings(Batch& batch);
  /// Adds the number of keys to the totals, or to `unknown` if only the device knows it.
  void count_keys(UniqueBlocks const& keys, std::initializer_list<std::uint64_t*> totals, std::size_t index,
                  std::vector<SizeTerm>& unknown) const;
  /// Weights of the positions of found(), 0 for keys without a row if these give zeros.
  [[nodiscard]] Block<float> weights_of(TableLookup const& lookup, Block<float> const& weights) const;
  [[nodiscard]] bool are_rows_current(TableLookup const& lookup, std::size_t merged) const;
  /// Rows of the batch's unique keys in the table as it is now.
  [[nodiscard]] Block<RowId> present_rows(TableLookup const& lookup, std::size_t merged) const;
  [[nodiscard]] Block<RowId> find(Keys const& keys, std::size_t merged) const;
  void update(std::size_t merged, std::span<TableGradient* const> gradients, TableStep const& step);
  void update_by_table(std::size_t merged, KeyValues const& sums, std::span<RowId const> rows, TableStep const& step);
  /// (U, dim) Sums of the gradients of bags, times `factor`; zeros if there are none.
  [[nodiscard]] Block<float> reduce(TableLookup const& lookup, std::size_t merged, Block<float const> const& values,
                                    float factor) const;
  /// Weights times `factor`. @param weights of the positions of `unique`, or empty if all are 1; so is the result
  [[nodiscard]] Block<float> scaled_weights(Block<float> const& weights, float factor,
                                            UniqueBlocks const& unique) const;
  [[nodiscard]] Block<RowId> rows_to_update(TableGradient const& gradient, std::size_t merged) const;
  /// (W, dim) The sum of the gradients of each of the W unique keys that this rank owns. The first call adds them.
  std::span<float> sums_of(TableGradient& gradient, std::size_t merged);
  /// The pending gradients of a merged table. The caller's stream waits for them.
  [[nodiscard]] std::vector<TableGradient*> pending(std::size_t merged);
  /// The keys of some gradients of a merged table, each once, and the sum of the gradients of each.
  struct Sums;
  Sums once_each(std::span<TableGradient* const> gradients, std::size_t merged);

  // prioritized_updates.cpp
  /// Marks the keys that both steps have in a merged table.
  void mark_shared(std::size_t merged, Ahead const& ahead);
  [[nodiscard]] KeySplit split(Block<float> const& marks, std::span<std::size_t const> sizes) const;
  /// The received keys at some positions as a lookup of their own.
  [[nodiscard]] TableLookup part_of(TableLookup const& lookup, Block<std::uint32_t> const& positions,
                                    std::vector<std::size_t> sizes) const;
  [[nodiscard]] Block<float> rows_at(std::span<float const> rows, std::size_t width,
                                     Block<std::uint32_t> const& positions) const;
  /// The unique keys of a lookup at some positions.
  [[nodiscard]] TableLookup part_of_unique(TableLookup const& lookup, Block<std::uint32_t> const& positions) const;
  /// Looks keys up, and returns the embedding of each position. @param refused gets the keys that get no row, or null
  [[nodiscard]] Block<float> read(TableLookup& part, std::size_t merged, float* refused, bool is_late);
  [[nodiscard]] Block<float> joined(std::span<Block<float> const> blocks) const;
  /// (merged tables) The marks of finish_gradients(), 1 for tables without gradients.
  [[nodiscard]] Block<float> finite_marks(std::span<Block<float> const> marks) const;
  [[nodiscard]] bool is_reading_ahead() const;
  /// Waits for the rows that were read early, and for the marks of keys.
  void take_early();
  /// Lets the caller's stream wait for that of read_ahead().
  void follow_ahead() const;
  /// Reads the rows that the step before has updated, and starts to send them.
  void read_late();
  void take_late();
  /// Splits the sums that this rank sends. @returns what goes first
  SentRows split_sums(Gradients& gradients, TableLookup const& lookup, std::size_t merged, Block<float> const& sums);
  /// Splits gradients that this rank has received whole.
  void split_received(Gradients& gradients);
  /// Sends and adds what is deferred of the pending gradients, for callers that need all of them.
  void complete_gradients();
  /// Starts to send what later is of gradients that are not complete; null if none is. take_later() waits for it.
  [[nodiscard]] std::unique_ptr<RowExchange> send_later(std::span<std::unique_ptr<Gradients> const> all);
  void take_later(std::span<std::unique_ptr<Gradients> const> all, std::unique_ptr<RowExchange> exchange);
  void apply_deferred();
  void apply_first(std::span<TableStep const> steps);
  void apply(std::span<TableStep const> steps);

  std::unique_ptr<Exchanger> exchanger_;
  ShardedTableOptions options_;
  std::vector<MergedTable> merged_;
  std::vector<std::shared_ptr<Table>> tables_;
  std::vector<std::uint64_t> num_replaced_;         ///< (merged tables) Calls of replace_table().
  std::vector<std::size_t> widths_;                 ///< Dim of each merged table.
  std::map<std::uint32_t, std::size_t> merged_of_;  ///< Merged table of each table id.
  std::unique_ptr<KeyRoom> key_room_;
  std::uint64_t num_begun_ = 0;  ///< Batches.
  std::uint32_t step_ = 0;
  bool is_broken_ = false;  ///< An exchange has failed: the ranks are out of step.
  std::shared_ptr<BatchOrder> order_;
  std::shared_ptr<StepsInUse> steps_in_use_;
  std::vector<std::unique_ptr<Gradients>> pending_;  ///< In the order of finish_gradients().
  std::unique_ptr<Ahead> ahead_;
  std::unique_ptr<Deferred> deferred_;
  std::unique_ptr<Deferred> applied_;  ///< On a CUDA device: its memory is in use until apply_gradients().
  Traffic traffic_;
  Block<std::uint64_t> unknown_traffic_;  ///< (4) What only the device knows; see traffic().
};

/// See ShardedTable::begin(). A batch that is destroyed before finish() does not wait: its keys are still sent.
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
