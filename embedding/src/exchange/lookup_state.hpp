// SPDX-License-Identifier: Apache-2.0

// State of batches between the calls of a ShardedTable: of lookups (set by begin() to finish()), and of gradients (set
// by start_gradients() and finish_gradients()). sharded_table.cpp explains the steps.
//
// A merged table stands for tables of equal options that share storage and exchanges.
//
// Shapes: K ids of this rank's batch, U unique keys of these, V keys that this rank gets as an owner, W unique ones of
// these.

#pragma once

#include "exchange/inputs.hpp"
#include "exchange/key_exchange.hpp"
#include "exchange/row_exchange.hpp"
#include "headway/base/status.hpp"
#include "headway/embedding/sharded_table.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <vector>

namespace headway::embedding {

/// Scope of a collective call of several ranks. If it ends by an exception, this rank has left an exchange that others
/// make, so `is_broken` stays set, and no later call may begin. With one rank there are no peers, so it may go on.
class ExchangeScope {
 public:
  /// @throws base::UsageError if a call before has failed
  ExchangeScope(bool& is_broken, bool is_alone) : is_broken_(is_broken) {
    base::expects(!is_broken, "an exchange of these tables has failed on this rank: ranks have to make them anew");
    is_broken_ = !is_alone;
  }
  ExchangeScope(ExchangeScope const&) = delete;
  ExchangeScope& operator=(ExchangeScope const&) = delete;
  void succeed() { is_broken_ = false; }

 private:
  bool& is_broken_;
};

/// Steps (Table::begin_step()) in which the batches that exist were begun; several may have the same. Batches may be
/// destroyed on other threads than that of the tables.
class StepsInUse {
 public:
  void add(std::uint32_t step) {
    std::lock_guard const lock(mutex_);
    steps_.insert(step);
  }
  void remove(std::uint32_t step) {
    std::lock_guard const lock(mutex_);
    steps_.erase(steps_.find(step));
  }
  /// The oldest of them and `step`.
  [[nodiscard]] std::uint32_t oldest(std::uint32_t step) const {
    std::lock_guard const lock(mutex_);
    return steps_.empty() ? step : std::min(step, *steps_.begin());
  }

 private:
  mutable std::mutex mutex_;
  std::multiset<std::uint32_t> steps_;
};

/// Numbers of the batches that have begun and have not read their rows. Batches may be destroyed on other threads than
/// that of the tables.
class BatchOrder {
 public:
  void add(std::uint64_t number) {
    std::lock_guard const lock(mutex_);
    numbers_.insert(number);
  }
  void remove(std::uint64_t number) {
    std::lock_guard const lock(mutex_);
    numbers_.erase(number);
  }
  /// Is there no earlier one?
  [[nodiscard]] bool is_first(std::uint64_t number) const {
    std::lock_guard const lock(mutex_);
    return numbers_.empty() || *numbers_.begin() >= number;
  }

 private:
  mutable std::mutex mutex_;
  std::set<std::uint64_t> numbers_;
};

/// TableLookup::num_replaced of a lookup whose rows are to be found when they are needed.
constexpr std::uint64_t kNotLookedUp = std::numeric_limits<std::uint64_t>::max();

/// The keys of all ranks. @param sizes (ranks)
inline std::size_t sum_of(std::span<std::size_t const> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
}

/// Positions of the keys that a batch shares with another step, and of its other keys.
struct KeySplit {
  Block<std::uint32_t> shared{}, others{};              ///< Ascending.
  std::vector<std::size_t> num_shared{}, num_others{};  ///< (ranks) They add up to the positions in the lists.
};

/// How the keys that this rank has received as an owner (V), and those that it has sent (U), are split.
struct SharedKeys {
  Block<float> marks{};  ///< (V) 1: shared; 0: not.
  KeySplit received{}, sent{};
};

/// State of a lookup in one merged table. begin() sets the first group of fields (start_keys()
/// `sent`), look_up() the second, and read_ahead() the third.
struct ShardedTable::TableLookup {
  Inputs inputs;
  UniqueBlocks unique;              ///< (U) With several ranks sorted by owner.
  std::vector<std::size_t> sent{};  ///< (ranks) Keys for each owner; they add up to U. Set by start_keys().

  std::vector<std::size_t> received{};  ///< (ranks) Keys from each rank; they add up to V.
  UniqueBlocks owned{};            ///< (W) Unique ones of the received keys. Empty if `unique` serves: see in_rows.
  Block<RowId> rows{};             ///< (W)
  std::uint64_t num_replaced = 0;  ///< Times that the table was replaced before; see replace_table().
  std::uint64_t generation = 0;    ///< Table::generation() when `rows` was found; if it changed, `rows` is stale.
  bool masks_unknown = false;      ///< Keys without a row give zeros.
  bool in_rows = false;            ///< Embeddings are read from the rows of `unique`: one rank, no copies.
  Block<float> embeddings{};       ///< (U, dim), unless in_rows and not kept for weight_gradients().

  ReceivedKeys keys{};       ///< (V) Kept for read_ahead().
  bool is_in_parts = false;  ///< `rows` is empty: the keys were not looked up together, and are found when needed.
  SharedKeys before{};       ///< Keys that the step before also has are read late.
  SharedKeys after{};        ///< Keys that the step after also has are updated first.

  [[nodiscard]] UniqueBlocks const& found() const { return in_rows ? unique : owned; }
};

/// Stages of a batch, in their order. A batch goes through kLookedUp and kEmbeddingsSent, or else through kReadAhead.
enum class LookupStage : std::uint8_t { kBegun, kKeysSent, kLookedUp, kEmbeddingsSent, kReadAhead, kFinished, kFailed };

struct ShardedTable::Batch::State {
  BatchOptions options;
  LookupStage stage = LookupStage::kBegun;
  bool has_unique_keys = false;
  std::vector<TableLookup> lookups{};
  std::unique_ptr<KeyExchange> keys{};        ///< On their way until look_up(); none with one rank.
  std::unique_ptr<RowExchange> embeddings{};  ///< On their way until finish(); none with one rank.
  /// Keys without a row since a table is full: (merged tables) of this rank from look_up() on, (ranks, merged tables)
  /// after finish(). After read_ahead() there are two numbers for each, of early and of late keys.
  Block<float> refused{};
  std::unique_ptr<Gradients> gradients{};  ///< On their way until finish_gradients().
  ShardedTable const* owner = nullptr;
  std::shared_ptr<StepsInUse> steps_in_use{};
  std::uint32_t step = 0;
  std::shared_ptr<BatchOrder> order{};  ///< Holds `number` until the rows are read.
  std::uint64_t number = 0;             ///< Batches are numbered from 0.

  State() = default;
  State(State const&) = delete;
  State& operator=(State const&) = delete;
  ~State() {
    release_rows();
    leave_order();
  }
  /// Later batches may read their rows.
  void leave_order() {
    if (order != nullptr) order->remove(number);
    order = nullptr;
  }
  /// Its rows are no longer in use.
  void release_rows() {
    if (steps_in_use != nullptr) steps_in_use->remove(step);
    steps_in_use = nullptr;
  }
};

/// Gradients of a lookup in one merged table.
struct ShardedTable::TableGradient {
  TableLookup const* lookup;
  bool is_there;                       ///< May any rank have gradients? See also `num_keys`.
  bool may_change = false;             ///< See GradientRows.
  bool was_read = false;               ///< The lookup was LookupMode::kRead, so keys may lack rows.
  Block<std::uint32_t> num_keys{};     ///< (1) CUDA: W if any rank has gradients, or else 0. Empty: W.
  Block<float const> values{};         ///< (V, dim); if in_rows (bags, dim), memory of the caller.
  float factor = 1;                    ///< Factor of `values`, if in_rows.
  std::optional<Block<float>> sums{};  ///< (W, dim) once they are added; `values` is empty then.
  std::shared_ptr<void> added{};       ///< Point of the stream at which `sums` were there.

  [[nodiscard]] Keys keys() const {
    Keys keys = lookup->found().keys();
    if (!num_keys.empty()) keys.num_known = num_keys.data();
    return keys;
  }
  [[nodiscard]] Bags bags() const { return lookup->in_rows ? lookup->inputs.bags() : Bags{}; }
};

/// Gradients of a batch.
struct ShardedTable::Gradients {
  std::shared_ptr<Batch::State> batch{};  ///< Set by finish_gradients(), since the state owns them before.
  std::vector<TableGradient> of_tables{};
  std::vector<Block<float>> marks{};  ///< (merged tables)(1) 1, or NaN if a sent sum is not finite. Empty if none was.
  std::unique_ptr<RowExchange> exchange{};  ///< None with one rank, or after finish_gradients().
  std::shared_ptr<void> made{};             ///< Point of the stream at which `values` were there.

  // With read_ahead(): `of_tables` are the gradients of keys that the next step needs. (merged tables), or empty.
  std::vector<TableLookup> first_keys{}, later_keys{};  ///< The keys of `of_tables` and `later`, at their owner.
  std::vector<TableGradient> later{};                   ///< Gradients of the other keys.
  std::vector<Block<float>> later_rows{};               ///< (U of these keys, dim) To be sent; empty once they are.
  bool is_complete = false;  ///< No longer in two parts: `later` is applied with `of_tables`.
  Block<float> flags{};      ///< (ranks, merged tables) 1: the rank has gradients.
};

/// Batches that are read ahead of the update of those before. prioritized_updates.cpp explains it.
struct ShardedTable::Ahead {
  std::vector<std::shared_ptr<Batch::State>> next, present;
  std::unique_ptr<RowExchange> early{}, late{};  ///< On their way; null before and after.
  bool is_late_read = false;
  std::shared_ptr<void> done{};  ///< Point of the stream after read_ahead() or take_ahead().
};

/// Gradients of a step that are applied in the next one.
struct ShardedTable::Deferred {
  std::vector<TableStep> steps;                         ///< (merged tables)
  std::vector<std::unique_ptr<Gradients>> gradients{};  ///< Their `later` parts.
  std::unique_ptr<RowExchange> exchange{};
  std::shared_ptr<void> done{};  ///< Point of the stream at which they were applied.
};

}  // namespace headway::embedding
