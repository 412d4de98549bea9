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
//   Gradients are added in the order of ranks, and for each rank in the order of its batch: same bits in every run
//   (sharded_gradients.cpp). Counts are exact, with and without deduplication. Unique keys are sorted by owner, and a
//   block to a rank has the keys of the first merged table, then those of the next.
// Complexity: 2 all-to-alls forward (keys, embeddings) and 1 backward, for any number of features and
//   tables. A key that is sent costs 16 bytes, and dim floats each way. With one rank that removes duplicates first,
//   nothing is copied: embeddings are read from the rows, and gradients of bags go into the update.
// Source: MTGRBoost, section 4.3 and figure 8. key_exchange.cpp has the first of the exchanges.
//
// In shapes, K is the number of ids of a rank, U of its unique keys, V of the keys that it gets as an owner, and W of
// the unique ones among these.

#include "headway/embedding/sharded_table.hpp"

#include "exchange/description.hpp"
#include "exchange/lookup_state.hpp"
#include "headway/base/status.hpp"
#include "headway/embedding/routing.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

namespace headway::embedding {

namespace {

Inputs join(std::span<Feature const> features) {
  auto const sizes = sizes_of(features);
  Inputs inputs{.ids = std::vector<std::uint64_t>(sizes.ids),
                .tables = std::vector<std::uint32_t>(sizes.ids),
                .offsets = std::vector<std::int64_t>(sizes.has_bags ? sizes.bags + 1 : 0),
                .weights = std::vector<float>(sizes.has_weights ? sizes.ids : 0),
                .are_means = {},
                .num_bags = sizes.bags};
  join_features(features,
                {.ids = inputs.ids, .tables = inputs.tables, .offsets = inputs.offsets, .weights = inputs.weights});
  if (std::ranges::any_of(features, [](Feature const& each) { return each.pooling == Pooling::kMean; })) {
    for (auto const& each : features) {
      inputs.are_means.insert(inputs.are_means.end(), each.num_bags(), each.pooling == Pooling::kMean);
    }
  }
  return inputs;
}

}  // namespace

ShardedTable::Batch::Batch() : state_(std::make_shared<State>()) {}
ShardedTable::Batch::~Batch() = default;

std::size_t ShardedTable::Batch::num_bags(std::size_t merged) const { return state_->lookups[merged].inputs.num_bags; }

ShardedTable::ShardedTable(std::span<MergedTable const> tables, std::unique_ptr<Exchanger> exchanger,
                           ShardedTableOptions options)
    : exchanger_(std::move(exchanger)),
      options_(std::move(options)),
      deduplicator_(make_cpu_deduplicator(options_.thread_pool)),
      merged_(tables.begin(), tables.end()),
      key_room_(std::make_unique<KeyRoom>(static_cast<std::size_t>(exchanger_->size()))),
      steps_in_use_(std::make_shared<std::multiset<std::uint32_t>>()) {
  std::string error;  // Told to the other ranks, which would wait for this one.
  try {
    make_tables();
  } catch (base::UsageError const& failure) {
    error = failure.what();
  }
  expect_agreement(error);
}

void ShardedTable::make_tables() {
  for (std::size_t merged = 0; merged < merged_.size(); ++merged) {
    for (auto const number : merged_[merged].tables) {
      base::expects(merged_of_.emplace(number, merged).second,
                    "table " + std::to_string(number) + " is merged into two tables");
    }
    auto table_options = merged_[merged].options;
    if (table_options.thread_pool == nullptr) table_options.thread_pool = options_.thread_pool;
    tables_.push_back(make_cpu_table(table_options));
    widths_.push_back(tables_.back()->dim());
  }
}

ShardedTable::~ShardedTable() = default;

void ShardedTable::expect_agreement(std::string const& error) {
  auto const num_ranks = static_cast<std::size_t>(exchanger_->size());
  std::string const own = error.empty() ? describe(merged_, options_.dedup) : "an error: " + error;
  std::vector<std::size_t> const one(num_ranks, 1), own_size(num_ranks, own.size());
  RankBlocks<std::uint64_t> sizes(one), all_sizes(one);
  for (std::size_t rank = 0; rank < num_ranks; ++rank) sizes[rank][0] = own.size();
  start_exchange(*exchanger_, sizes, all_sizes)->wait();
  std::vector<std::size_t> received;
  for (std::size_t rank = 0; rank < num_ranks; ++rank) received.push_back(all_sizes[rank][0]);
  RankBlocks<char> texts(own_size), all_texts(received);
  for (std::size_t rank = 0; rank < num_ranks; ++rank) std::ranges::copy(own, texts[rank].begin());
  start_exchange(*exchanger_, texts, all_texts)->wait();
  if (!error.empty()) throw base::UsageError(error);
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

std::unique_ptr<ShardedTable::Batch> ShardedTable::begin(std::span<Feature const> features,
                                                         BatchOptions const& options) {
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
  state.options = options;
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
  ExchangeScope scope(is_broken_);
  if (num_ranks > 1) {
    std::vector<RoutedKeys> keys;
    for (auto const& lookup : state.lookups) keys.push_back({.keys = lookup.unique.keys(), .sizes = lookup.sent});
    state.keys.emplace(*exchanger_, *key_room_, keys, num_begun_);
  }
  ++num_begun_;
  state.step = steps_in_use_->insert(step_);
  state.steps_in_use = steps_in_use_;
  scope.succeed();
  return batch;
}

void ShardedTable::finish(Batch& batch) {
  auto& state = *batch.state_;
  base::expects(!std::exchange(state.has_begun_to_finish, true), "finish: the batch is finished, or could not be");
  ExchangeScope scope(is_broken_);
  take_keys(batch);
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    look_up(batch, merged);
  }
  return_embeddings(batch);
  state.is_finished = true;
  scope.succeed();
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

void ShardedTable::look_up(Batch& batch, std::size_t merged) {
  auto& lookup = batch.state_->lookups[merged];
  Table& table = *tables_[merged];
  Keys const keys = lookup.found().keys();
  lookup.rows.resize(keys.size());
  if (batch.state_->options.mode == LookupMode::kInsert) {
    std::vector<KeyStatus> statuses(keys.size());
    table.find_or_insert(keys, lookup.rows, statuses);
    lookup.num_refused = static_cast<std::uint64_t>(std::ranges::count(statuses, KeyStatus::kNoRoom));
  } else {
    table.find(keys, lookup.rows, {});
    if (merged_[merged].reads_unknown_as_zeros) {
      for (auto const row : lookup.rows) lookup.are_known.push_back(row == RowId::kNone ? 0 : 1);
    }
  }
  lookup.generation = table.generation();
}

// Each embedding goes with the number of keys that this rank refused. It is exact in float32 below 2^24.
void ShardedTable::return_embeddings(Batch& batch) {
  auto& lookups = batch.state_->lookups;
  std::vector<std::vector<float>> values(lookups.size());  // (V, dim) of each merged table
  std::vector<float> refused, all_refused;
  for (std::size_t merged = 0; merged < lookups.size(); ++merged) {
    auto const& lookup = lookups[merged];
    refused.push_back(static_cast<float>(lookup.num_refused));
    if (lookup.in_rows && !batch.state_->options.keeps_embeddings) continue;
    auto const& found = lookup.found();
    auto const weights = lookup.known_weights();
    if (lookup.in_rows) {
      values[merged].resize(found.size() * widths_[merged]);
      tables_[merged]->gather(found.keys(), lookup.rows, values[merged]);
      for (std::size_t i = 0; i < lookup.are_known.size() * widths_[merged]; ++i) {
        values[merged][i] *= lookup.are_known[i / widths_[merged]];
      }
    } else {
      values[merged].resize(found.inverse_indices.size() * widths_[merged]);
      tables_[merged]->gather_bags(found.keys(), lookup.rows, found.inverse_indices, {.weights = weights},
                                   values[merged]);
    }
  }
  if (exchanger_->size() > 1) {
    values = exchange_rows(*exchanger_, lookups, values, widths_, &TableLookup::received, &TableLookup::sent, refused,
                           all_refused);
    for (auto& lookup : lookups) lookup.num_refused = 0;
    for (std::size_t i = 0; i < all_refused.size(); ++i) {
      lookups[i % lookups.size()].num_refused += static_cast<std::uint64_t>(all_refused[i]);
    }
  }
  for (std::size_t merged = 0; merged < lookups.size(); ++merged)
    lookups[merged].embeddings = std::move(values[merged]);
}

std::uint64_t ShardedTable::num_refused(Batch const& batch, std::size_t merged) const {
  base::expects(batch.state_->is_finished, "num_refused: the batch is not finished");
  return batch.state_->lookups[merged].num_refused;
}

std::span<RowId const> ShardedTable::present_rows(TableLookup const& lookup, std::size_t merged,
                                                  std::vector<RowId>& present) const {
  if (lookup.generation == tables_[merged]->generation()) return lookup.rows;
  present.resize(lookup.rows.size());  // Rows of other keys, or of these, were removed or moved.
  tables_[merged]->find(lookup.found().keys(), present, {});
  return present;
}

void ShardedTable::expand(Batch const& batch, std::size_t merged, std::span<float> out) {
  auto const& state = *batch.state_;
  base::expects(state.is_finished, "expand: the batch is not finished");
  auto const& lookup = state.lookups[merged];
  if (!lookup.in_rows) {
    return deduplicator_->expand(lookup.unique, lookup.inputs.bags(), lookup.embeddings, out);
  }
  std::vector<RowId> present;
  auto const rows = present_rows(lookup, merged, present);
  for (std::size_t i = 0; i < present.size(); ++i) {
    base::expects(present[i] != RowId::kNone || lookup.rows[i] == RowId::kNone,
                  "expand: rows of the batch were removed after finish()");
  }
  Bags bags = lookup.inputs.bags();
  auto const weights = lookup.known_weights(bags.weights);
  if (!weights.empty()) bags.weights = weights;
  tables_[merged]->gather_bags(lookup.unique.keys(), rows, lookup.unique.inverse_indices, bags, out);
}

}  // namespace headway::embedding
