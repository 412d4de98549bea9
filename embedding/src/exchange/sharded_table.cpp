// SPDX-License-Identifier: Apache-2.0

// Lookups in tables whose rows are spread over ranks, in host memory.
//
// Idea: the hash of a key decides which rank owns it. A rank sends each distinct key of its batch to the owner once,
// with the number of its lookups. The owner removes duplicates again, because ranks share keys, looks each key up once,
// and returns embeddings. The rank expands them to its bags. Gradients take the same way back and are added at both
// stages.
//
// Example: 2 ranks; rank 0 owns id 3, rank 1 owns 7 and 9. Rank 0 looks up 7, 3, 7 and rank 1 looks up 3, 9.
//   First stage: rank 0 sends 3 (count 1) to itself and 7 (count 2) to rank 1; rank 1 sends 3 to rank 0, 9 to itself.
//   Second stage: rank 0 has received 3 twice, and looks it up once with count 2. It returns one embedding to each
//   rank. Backward: rank 0 adds the two gradients of 7 and sends the sum. The owner of 3 adds the gradients of both
//   ranks.
//
// Invariants: all ranks make the same exchanges in every batch, even if they have no keys.
//   Gradients are added in the order of ranks, and for each rank in the order of its batch: same bits in every run.
//   Counts are exact, with and without deduplication. Unique keys are sorted by owner, and a block to a rank has the
//   keys of the first merged table, then those of the next.
// Complexity: 2 all-to-alls forward (keys, embeddings) and 1 backward, for any number of features and
//   tables. A key that is sent costs 16 bytes, and dim floats each way. With one rank that removes duplicates first,
//   nothing is copied: embeddings are read from the rows, and gradients of bags go into the update.
// Source: MTGRBoost, section 4.3 and figure 8. key_exchange.cpp has the first of the exchanges.
//
// In shapes, K is the number of ids of a rank, U of its unique keys, V of the keys that it gets as an owner, and W of
// the unique ones among these.

#include "headway/embedding/sharded_table.hpp"

#include "exchange/description.hpp"
#include "exchange/key_exchange.hpp"
#include "exchange/rank_blocks.hpp"
#include "headway/base/status.hpp"
#include "headway/embedding/routing.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

namespace headway::embedding {

namespace {

/// The features of a merged table, one after the other.
struct Inputs {
  std::vector<std::uint64_t> ids;     ///< (K)
  std::vector<std::uint32_t> tables;  ///< (K)
  std::vector<std::int64_t> offsets;  ///< (bags + 1), or empty if each id is a bag.
  std::vector<float> weights;         ///< (K), or empty if all are 1.
  std::size_t num_bags = 0;

  [[nodiscard]] Keys keys() const { return {.ids = ids, .tables = tables}; }
  [[nodiscard]] Bags bags() const { return {.offsets = offsets, .weights = weights}; }
};

Inputs join(std::span<Feature const> features) {
  auto const sizes = sizes_of(features);
  Inputs inputs{.ids = std::vector<std::uint64_t>(sizes.ids),
                .tables = std::vector<std::uint32_t>(sizes.ids),
                .offsets = std::vector<std::int64_t>(sizes.has_bags ? sizes.bags + 1 : 0),
                .weights = std::vector<float>(sizes.has_weights ? sizes.ids : 0),
                .num_bags = sizes.bags};
  join_features(features,
                {.ids = inputs.ids, .tables = inputs.tables, .offsets = inputs.offsets, .weights = inputs.weights});
  return inputs;
}

/// Elements of the block of each rank: `widths[merged]` for each of the keys of all merged tables, and `more`.
/// @param counts member of a lookup with the number of keys for, or from, each rank
template <class Lookup>
std::vector<std::size_t> block_sizes(std::vector<Lookup> const& lookups, std::vector<std::size_t> Lookup::*counts,
                                     std::span<std::size_t const> widths, std::size_t num_ranks, std::size_t more = 0) {
  std::vector<std::size_t> sizes(num_ranks, more);
  for (std::size_t merged = 0; merged < lookups.size(); ++merged) {
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      sizes[rank] += (lookups[merged].*counts)[rank] * widths[merged];
    }
  }
  return sizes;
}

/// Sends rows of all merged tables in one exchange.
/// @param rows of each merged table (keys, width), sorted by rank
/// @param sent, received members with the number of keys for, and from, each rank
/// @param flags sent to every rank; on return, whether any rank has set each
/// @returns the received rows of each merged table, sorted by rank
template <class Lookup>
std::vector<std::vector<float>> exchange_rows(Exchanger& exchanger, std::vector<Lookup> const& lookups,
                                              std::vector<std::vector<float>> const& rows,
                                              std::span<std::size_t const> widths,
                                              std::vector<std::size_t> Lookup::*sent,
                                              std::vector<std::size_t> Lookup::*received, std::span<float> flags = {}) {
  auto const num_ranks = static_cast<std::size_t>(exchanger.size());
  RankBlocks<float> sends(block_sizes(lookups, sent, widths, num_ranks, flags.size()));
  RankBlocks<float> receives(block_sizes(lookups, received, widths, num_ranks, flags.size()));
  for (std::size_t merged = 0; merged < lookups.size(); ++merged) {
    auto from = rows[merged].begin();
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      auto const count = static_cast<std::ptrdiff_t>((lookups[merged].*sent)[rank] * widths[merged]);
      sends.append(rank, std::span(from, from + count));
      from += count;
    }
  }
  for (std::size_t rank = 0; rank < num_ranks; ++rank) sends.append(rank, flags);
  start_exchange(exchanger, sends, receives)->wait();
  std::vector<std::vector<float>> result(lookups.size());
  for (std::size_t merged = 0; merged < lookups.size(); ++merged) {
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      auto const block = receives.take(rank, (lookups[merged].*received)[rank] * widths[merged]);
      result[merged].insert(result[merged].end(), block.begin(), block.end());
    }
  }
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    std::ranges::transform(receives.take(rank, flags.size()), flags, flags.begin(),
                           [](float one, float other) { return std::max(one, other); });
  }
  return result;
}

}  // namespace

/// State of a lookup in one merged table. begin() sets the first group of fields, finish() the second, and
/// return_gradients() the last.
struct ShardedTable::TableLookup {
  Inputs inputs;
  UniqueKeys unique;              ///< (U) With several ranks sorted by owner.
  std::vector<std::size_t> sent;  ///< (ranks) Keys for each owner; they add up to U.

  std::vector<std::size_t> received;  ///< (ranks) Keys from each rank; they add up to V.
  UniqueKeys owned;                   ///< (W) Unique ones of the received keys. Empty if `unique` serves: see in_rows.
  std::vector<RowId> rows;            ///< (W)
  std::uint64_t generation = 0;       ///< That of the table when `rows` was found.
  bool in_rows = false;               ///< Embeddings are read from the rows of `unique`: one rank, no copies.
  std::vector<float> embeddings;      ///< (U, dim), unless in_rows.

  bool has_gradients = false;              ///< Does any rank have gradients?
  std::vector<float> gradients;            ///< (V, dim), unless in_rows.
  std::span<float const> bag_gradients{};  ///< (bags, dim) if in_rows.

  [[nodiscard]] UniqueKeys const& found() const { return in_rows ? unique : owned; }
};

struct ShardedTable::Batch::State {
  LookupMode mode = LookupMode::kInsert;
  bool has_begun_to_finish = false;  ///< An exception in finish() leaves it so: the batch cannot be finished.
  bool is_finished = false;
  std::vector<TableLookup> lookups;
  std::optional<KeyExchange> keys;  ///< On their way until finish(); none with one rank.
  std::shared_ptr<std::multiset<std::uint32_t>> steps_in_use;
  std::multiset<std::uint32_t>::iterator step;
};

ShardedTable::Batch::Batch() : state_(std::make_unique<State>()) {}
ShardedTable::Batch::~Batch() {
  if (state_->steps_in_use != nullptr) state_->steps_in_use->erase(state_->step);
}

std::size_t ShardedTable::Batch::num_bags(std::size_t merged) const { return state_->lookups[merged].inputs.num_bags; }

ShardedTable::ShardedTable(std::span<MergedTable const> tables, std::unique_ptr<Exchanger> exchanger,
                           ShardedTableOptions options)
    : exchanger_(std::move(exchanger)),
      options_(std::move(options)),
      deduplicator_(make_cpu_deduplicator(options_.thread_pool)),
      key_room_(std::make_unique<KeyRoom>(static_cast<std::size_t>(exchanger_->size()))),
      steps_in_use_(std::make_shared<std::multiset<std::uint32_t>>()) {
  for (std::size_t merged = 0; merged < tables.size(); ++merged) {
    for (auto const number : tables[merged].tables) {
      base::expects(merged_of_.emplace(number, merged).second,
                    "table " + std::to_string(number) + " is merged into two tables");
    }
    auto table_options = tables[merged].options;
    if (table_options.thread_pool == nullptr) table_options.thread_pool = options_.thread_pool;
    tables_.push_back(make_cpu_table(table_options));
    widths_.push_back(tables_.back()->dim());
  }
  expect_agreement(tables);
}

ShardedTable::~ShardedTable() = default;

void ShardedTable::expect_agreement(std::span<MergedTable const> tables) {
  auto const num_ranks = static_cast<std::size_t>(exchanger_->size());
  std::string const own = describe(tables, options_.dedup);
  std::vector<std::size_t> const one(num_ranks, 1), own_size(num_ranks, own.size());
  RankBlocks<std::uint64_t> sizes(one), all_sizes(one);
  for (std::size_t rank = 0; rank < num_ranks; ++rank) sizes[rank][0] = own.size();
  start_exchange(*exchanger_, sizes, all_sizes)->wait();
  std::vector<std::size_t> received;
  for (std::size_t rank = 0; rank < num_ranks; ++rank) received.push_back(all_sizes[rank][0]);
  RankBlocks<char> texts(own_size), all_texts(received);
  for (std::size_t rank = 0; rank < num_ranks; ++rank) std::ranges::copy(own, texts[rank].begin());
  start_exchange(*exchanger_, texts, all_texts)->wait();
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    std::string const other(all_texts[rank].begin(), all_texts[rank].end());
    if (other == own) continue;
    std::string text = "ranks disagree about tables: rank " + std::to_string(exchanger_->rank()) + " has ";
    text.append(own).append("; rank ").append(std::to_string(rank)).append(" has ").append(other);
    throw base::UsageError(text);
  }
}

void ShardedTable::begin_step(std::uint32_t step) {
  auto const oldest = steps_in_use_->empty() ? step : std::min(step, *steps_in_use_->begin());
  for (auto const& table : tables_) table->begin_step(step, oldest);
  step_ = step;
}

UniqueKeys ShardedTable::unique(Keys const& keys, Dedup stage) const {
  bool const removes = options_.dedup == stage || options_.dedup == Dedup::kBoth;
  return removes ? deduplicator_->deduplicate(keys) : from_unique(keys);
}

bool ShardedTable::may_repeat() const {
  return options_.dedup == Dedup::kNone || (options_.dedup == Dedup::kFirst && exchanger_->size() > 1);
}

std::unique_ptr<ShardedTable::Batch> ShardedTable::begin(std::span<Feature const> features, LookupMode mode) {
  std::vector<std::vector<Feature>> by_merged(tables_.size());
  for (auto const& feature : features) {
    auto const found = merged_of_.find(feature.table);
    base::expects(found != merged_of_.end(),
                  "feature " + std::string(feature.name) + ": there is no table " + std::to_string(feature.table));
    by_merged[found->second].push_back(feature);
  }
  auto const num_ranks = static_cast<std::size_t>(exchanger_->size());
  std::unique_ptr<Batch> batch(new Batch());
  auto& state = *batch->state_;
  state.mode = mode;
  for (auto const& of_table : by_merged) {
    TableLookup lookup;
    lookup.inputs = join(of_table);
    lookup.unique = unique(lookup.inputs.keys(), Dedup::kFirst);
    lookup.sent = {lookup.unique.size()};
    if (num_ranks > 1) {
      Route const by_owner = route(lookup.unique.keys(), static_cast<std::uint32_t>(num_ranks));
      lookup.unique = reorder(lookup.unique, by_owner.order);
      lookup.sent.assign(by_owner.counts.begin(), by_owner.counts.end());
    }
    state.lookups.push_back(std::move(lookup));
  }
  if (num_ranks > 1) {
    std::vector<RoutedKeys> keys;
    for (auto const& lookup : state.lookups) keys.push_back({.keys = lookup.unique.keys(), .sizes = lookup.sent});
    state.keys.emplace(*exchanger_, *key_room_, keys, num_begun_);
  }
  ++num_begun_;
  state.step = steps_in_use_->insert(step_);
  state.steps_in_use = steps_in_use_;
  return batch;
}

void ShardedTable::finish(Batch& batch) {
  auto& state = *batch.state_;
  base::expects(!std::exchange(state.has_begun_to_finish, true), "finish: the batch is finished, or could not be");
  take_keys(batch);
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    look_up(state.lookups[merged], *tables_[merged], state.mode);
  }
  return_embeddings(batch);
  state.is_finished = true;
}

// Keys of one rank go straight to the second stage.
void ShardedTable::take_keys(Batch& batch) {
  auto& state = *batch.state_;
  if (exchanger_->size() == 1) {
    for (auto& lookup : state.lookups) {
      lookup.received = lookup.sent;
      lookup.in_rows = options_.dedup == Dedup::kFirst || options_.dedup == Dedup::kBoth;
      if (!lookup.in_rows) lookup.owned = unique(lookup.unique.keys(), Dedup::kSecond);
    }
    return;
  }
  auto received = state.keys->finish(*key_room_);
  state.keys.reset();
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    auto& lookup = state.lookups[merged];
    lookup.owned = unique(received[merged].keys(), Dedup::kSecond);
    lookup.received = std::move(received[merged].sizes);
  }
}

void ShardedTable::look_up(TableLookup& lookup, Table& table, LookupMode mode) {
  Keys const keys = lookup.found().keys();
  lookup.rows.resize(keys.size());
  if (mode == LookupMode::kInsert) {
    table.find_or_insert(keys, lookup.rows, {});
  } else {
    table.find(keys, lookup.rows, {});
  }
  lookup.generation = table.generation();
}

void ShardedTable::return_embeddings(Batch& batch) {
  auto& lookups = batch.state_->lookups;
  std::vector<std::vector<float>> values(lookups.size());  // (V, dim) of each merged table
  for (std::size_t merged = 0; merged < lookups.size(); ++merged) {
    auto const& lookup = lookups[merged];
    if (lookup.in_rows) continue;
    values[merged].resize(lookup.owned.inverse_indices.size() * widths_[merged]);
    tables_[merged]->gather_bags(lookup.owned.keys(), lookup.rows, lookup.owned.inverse_indices, {}, values[merged]);
  }
  if (exchanger_->size() > 1) {
    values = exchange_rows(*exchanger_, lookups, values, widths_, &TableLookup::received, &TableLookup::sent);
  }
  for (std::size_t merged = 0; merged < lookups.size(); ++merged)
    lookups[merged].embeddings = std::move(values[merged]);
}

void ShardedTable::expand(Batch const& batch, std::size_t merged, std::span<float> out) {
  auto const& state = *batch.state_;
  base::expects(state.is_finished, "expand: the batch is not finished");
  auto const& lookup = state.lookups[merged];
  if (!lookup.in_rows) {
    return deduplicator_->expand(lookup.unique, lookup.inputs.bags(), lookup.embeddings, out);
  }
  std::span<RowId const> rows = lookup.rows;
  std::vector<RowId> present;
  if (lookup.generation != tables_[merged]->generation()) {  // Rows of other keys, or of these, were removed or moved.
    present.resize(rows.size());
    tables_[merged]->find(lookup.unique.keys(), present, {});
    for (std::size_t i = 0; i < rows.size(); ++i) {
      base::expects(present[i] != RowId::kNone || rows[i] == RowId::kNone,
                    "expand: rows of the batch were removed after finish()");
    }
    rows = present;
  }
  tables_[merged]->gather_bags(lookup.unique.keys(), rows, lookup.unique.inverse_indices, lookup.inputs.bags(), out);
}

void ShardedTable::return_gradients(Batch& batch, std::span<std::span<float const> const> gradients) {
  auto& state = *batch.state_;
  base::expects(state.is_finished, "return_gradients: the batch is not finished");
  base::expects(gradients.size() == tables_.size(), "return_gradients: gradients of each merged table, or empty ones");
  auto& lookups = state.lookups;
  std::vector<float> have_any(lookups.size());           // Flags: has this rank, then any, gradients for the table?
  std::vector<std::vector<float>> sums(lookups.size());  // (U, dim) of each merged table
  for (std::size_t merged = 0; merged < lookups.size(); ++merged) {
    auto& lookup = lookups[merged];
    auto const values = gradients[merged];
    base::expects(values.empty() || values.size() == lookup.inputs.num_bags * widths_[merged],
                  "return_gradients: one gradient for each bag of a merged table");
    have_any[merged] = values.empty() ? 0 : 1;
    lookup.bag_gradients = values;
    if (lookup.in_rows) continue;
    sums[merged].resize(lookup.unique.size() * widths_[merged]);
    if (!values.empty()) deduplicator_->reduce(lookup.unique, lookup.inputs.bags(), values, sums[merged]);
  }
  if (exchanger_->size() > 1) {
    sums = exchange_rows(*exchanger_, lookups, sums, widths_, &TableLookup::sent, &TableLookup::received, have_any);
  }
  for (std::size_t merged = 0; merged < lookups.size(); ++merged) {
    lookups[merged].gradients = std::move(sums[merged]);
    lookups[merged].has_gradients = have_any[merged] != 0;
  }
}

void ShardedTable::apply_gradients(Batch& batch, kernels::OptimizerStep const& step, float scale) {
  auto& lookups = batch.state_->lookups;
  for (std::size_t merged = 0; merged < lookups.size(); ++merged) {
    if (std::exchange(lookups[merged].has_gradients, false)) update(lookups[merged], *tables_[merged], step, scale);
  }
}

void ShardedTable::update(TableLookup& lookup, Table& table, kernels::OptimizerStep const& step, float scale) {
  auto const& found = lookup.found();
  if (may_repeat()) {  // A row takes one gradient in a step.
    UniqueKeys const once = deduplicator_->deduplicate(found.keys());
    std::vector<float> sums(once.size() * table.dim());
    std::vector<float> const scales(scale == 1 ? 0 : found.size(), scale);
    deduplicator_->reduce(once, {.weights = scales}, lookup.gradients, sums);
    std::vector<RowId> rows(once.size());
    table.find(once.keys(), rows, {});
    return table.update(once.keys(), rows, sums, step);
  }
  if (lookup.generation != table.generation()) {
    table.find(found.keys(), lookup.rows, {});
    lookup.generation = table.generation();
  }
  Bags bags = lookup.in_rows ? lookup.inputs.bags() : Bags{};
  std::vector<float> weights;
  if (scale != 1) {
    weights.assign(found.inverse_indices.size(), scale);
    for (std::size_t i = 0; i < bags.weights.size(); ++i) weights[i] *= bags.weights[i];
    bags.weights = weights;
  }
  table.update_bags(found.keys(), lookup.rows, found.csr(), bags,
                    lookup.in_rows ? lookup.bag_gradients : std::span<float const>(lookup.gradients), step);
}

}  // namespace headway::embedding
