// SPDX-License-Identifier: Apache-2.0

// Lookups in tables whose rows are spread over ranks. A merged table stands for tables of equal options that share
// storage and exchanges; a key is the pair (table id, id).
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
//   On a CUDA device only the device knows U at first. Several ranks learn it with the sizes of the exchange; one rank
//   never does, so its lookup does not wait for the device. Until then arrays (U, dim) have K rows.
// A key is refused if its owner's part of the table is full: it has its initial embedding, and learns nothing.
// Complexity: 2 all-to-alls forward (keys, embeddings) and 1 backward, for any number of features and tables. Messages
//   of keys then have a capacity that both ranks know (KeyRoom). 3 forward where an exchanger does not take capacities,
//   so sizes travel first. A key that is sent costs 16 bytes, and dim floats each way. With one
//   rank that removes duplicates first, nothing is copied: embeddings are read from the rows, and gradients of bags go
//   into the update.
// Source: MTGRBoost, section 4.3 and figure 8. key_exchange.hpp has the first of the exchanges.
//
// In shapes, K is the number of ids of a rank, U of its unique keys, V of the keys that it gets as an owner, and W of
// the unique ones among these.

#include "headway/embedding/sharded_table.hpp"

#include "exchange/lookup_state.hpp"
#include "headway/base/status.hpp"
#include "headway/embedding/description.hpp"

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <utility>

namespace headway::embedding {

ShardedTable::Batch::Batch() : state_(std::make_shared<State>()) {}
ShardedTable::Batch::~Batch() = default;

std::size_t ShardedTable::Batch::num_bags(std::size_t merged) const { return state_->lookups[merged].inputs.num_bags; }

ShardedTable::ShardedTable(std::span<MergedTable const> tables, std::unique_ptr<Exchanger> exchanger,
                           ShardedTableOptions options)
    : exchanger_(std::move(exchanger)),
      options_(std::move(options)),
      merged_(tables.begin(), tables.end()),
      key_room_(options_.row_exchanger == nullptr
                    ? std::make_unique<KeyRoom>(static_cast<std::size_t>(exchanger_->size()))
                    : std::make_unique<KeyRoom>(static_cast<std::size_t>(exchanger_->size()), options_.key_room,
                                                /*may_grow=*/false)),
      order_(std::make_shared<BatchOrder>()),
      steps_in_use_(std::make_shared<StepsInUse>()) {
  std::string error;  // Told to the other ranks, which would wait for this one.
  std::exception_ptr failure;
  try {
    if (options_.device == nullptr) options_.device = make_host_batch_device(options_.thread_pool);
    make_tables();
  } catch (std::exception const& thrown) {
    error = thrown.what();
    failure = std::current_exception();
  }
  expect_agreement(error, failure);
}

void ShardedTable::make_tables() {
  base::expects(options_.row_exchanger == nullptr || (options_.row_exchanger->rank() == exchanger_->rank() &&
                                                      options_.row_exchanger->size() == exchanger_->size()),
                "row_exchanger is of other ranks");
  base::expects(is_alone() || options_.device->is_host() || exchanger_->takes_device_memory(),
                "the exchanger does not take the memory of a device, in which these tables are");
  for (std::size_t merged = 0; merged < merged_.size(); ++merged) {
    for (auto const number : merged_[merged].tables) {
      base::expects(merged_of_.emplace(number, merged).second,
                    "table " + std::to_string(number) + " is merged into two tables");
    }
    tables_.push_back(std::exchange(merged_[merged].existing_table, nullptr));
    if (tables_.back() == nullptr) tables_.back() = options_.device->make_table(merged_[merged].options);
    widths_.push_back(tables_.back()->dim());
  }
  num_replaced_.resize(tables_.size());
  unknown_traffic_ = options_.device->block<std::uint64_t>(4);
  options_.device->clear(std::as_writable_bytes(unknown_traffic_.span));
}

ShardedTable::~ShardedTable() = default;

void ShardedTable::expect_agreement(std::string const& error, std::exception_ptr const& failure) {
  std::string own = failure == nullptr ? describe(merged_, options_.dedup) : "an error: " + error;
  if (options_.row_exchanger != nullptr) own += "; room for " + std::to_string(options_.key_room) + " keys";
  auto const all = exchanger_->all_gather(own);
  if (failure != nullptr) std::rethrow_exception(failure);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == own) continue;
    std::string text = "ranks disagree about tables: rank " + std::to_string(exchanger_->rank()) + " has ";
    text.append(own).append("; rank ").append(std::to_string(rank)).append(" has ").append(all[rank]);
    throw base::UsageError(text);
  }
}

void ShardedTable::replace_table(std::size_t merged, std::shared_ptr<Table> table) {
  base::expects(table != nullptr && table->dim() == widths_[merged], "replace_table: a table of the same dim");
  tables_[merged] = std::move(table);
  ++num_replaced_[merged];
}

void ShardedTable::begin_step(std::uint32_t step) {
  drain();  // Deferred gradients keep the rows of their step in use.
  auto const oldest = steps_in_use_->oldest(step);
  for (auto const& table : tables_) table->begin_step(step, oldest);
  step_ = step;
}

UniqueBlocks ShardedTable::unique(Keys const& keys, Dedup stage) const {
  bool const removes = options_.dedup == stage || options_.dedup == Dedup::kBoth;
  return removes ? options_.device->deduplicate(keys) : options_.device->from_unique(keys);
}

bool ShardedTable::may_repeat() const {
  return options_.dedup == Dedup::kNone || (options_.dedup == Dedup::kFirst && !is_alone());
}

std::unique_ptr<ShardedTable::Batch> ShardedTable::begin(std::span<Feature const> features,
                                                         BatchOptions const& options) {
  std::unique_ptr<Batch> batch(new Batch());
  auto& state = *batch->state_;
  state.options = options;
  for (auto& inputs : join_by_table(*options_.device, features, merged_of_, tables_.size())) {
    state.lookups.push_back({.inputs = std::move(inputs), .unique = {}});
  }
  start(*batch);
  return batch;
}

std::unique_ptr<ShardedTable::Batch> ShardedTable::begin_again(Batch const& batch) {
  expect_own(batch);
  std::unique_ptr<Batch> again(new Batch());
  again->state_->options = batch.state_->options;
  for (auto const& lookup : batch.state_->lookups) {
    again->state_->lookups.push_back({.inputs = lookup.inputs, .unique = lookup.unique});
  }
  again->state_->has_unique_keys = true;
  start(*again);
  return again;
}

bool ShardedTable::is_finished(Batch const& batch) const { return batch.state_->stage == LookupStage::kFinished; }

void ShardedTable::start(Batch& batch) {
  auto& state = *batch.state_;
  ExchangeScope scope(is_broken_, is_alone());
  for (auto& lookup : state.lookups) {
    traffic_.keys += lookup.inputs.ids.size();
    if (!state.has_unique_keys) lookup.unique = unique(lookup.inputs.keys(), Dedup::kFirst);
  }
  if (!is_alone()) send_keys(batch);
  state.number = num_begun_++;
  state.order = order_;
  order_->add(state.number);
  state.owner = this;
  state.has_unique_keys = true;
  steps_in_use_->add(step_);
  state.step = step_;
  state.steps_in_use = steps_in_use_;
  scope.succeed();
}

void ShardedTable::send_keys(Batch& batch) {
  auto& state = *batch.state_;
  std::vector<RoutedKeys> keys;
  for (auto& lookup : state.lookups) {
    auto [by_owner, counts] =
        options_.device->sort_by_owner(lookup.unique, static_cast<std::uint32_t>(exchanger_->size()));
    lookup.unique = by_owner;
    keys.push_back({.unique = std::move(by_owner), .counts = std::move(counts)});
  }
  if (exchanger_->takes_capacities() && options_.device->is_host()) {
    state.keys = make_capacity_key_exchange(*options_.device, *exchanger_, *key_room_, keys, num_begun_);
  } else {
    state.keys = make_sized_key_exchange(*options_.device, *exchanger_, std::move(keys));
  }
}

void ShardedTable::advance(Batch& batch, LookupStage stage) {
  expect_own(batch);
  auto& state = *batch.state_;
  base::expects(state.stage != LookupStage::kFailed, "the lookup of the batch has failed");
  if (state.stage >= stage) return;
  follow_ahead();
  base::expects(
      state.stage != LookupStage::kReadAhead || !is_reading_ahead() || pending_.empty(),
      "finish: the batch is of the next step, and gradients of the present one are neither applied nor dropped");
  ExchangeScope scope(is_broken_, is_alone());
  auto next = std::exchange(state.stage, LookupStage::kFailed);  // It stays so after an exception.
  while (next < stage) {
    if (next == LookupStage::kBegun) {
      take_sizes(batch);
      next = LookupStage::kKeysSent;
    } else if (next == LookupStage::kKeysSent) {
      take_keys(batch);
      next = LookupStage::kLookedUp;
    } else if (next == LookupStage::kLookedUp) {
      send_embeddings(batch);
      next = LookupStage::kEmbeddingsSent;
    } else if (next == LookupStage::kReadAhead) {
      take_late();
      next = LookupStage::kFinished;
    } else {
      take_embeddings(batch);
      next = LookupStage::kFinished;
    }
  }
  state.stage = next;
  scope.succeed();
}

void ShardedTable::start_keys(Batch& batch) { advance(batch, LookupStage::kKeysSent); }
void ShardedTable::look_up(Batch& batch) { advance(batch, LookupStage::kLookedUp); }
void ShardedTable::start_embeddings(Batch& batch) { advance(batch, LookupStage::kEmbeddingsSent); }
void ShardedTable::finish(Batch& batch) {
  base::expects(batch.state_->stage < LookupStage::kFinished, "finish: the batch is finished, or could not be");
  advance(batch, LookupStage::kFinished);
}

bool ShardedTable::poll(Batch& batch) {
  expect_own(batch);
  auto& state = *batch.state_;
  if (state.stage == LookupStage::kFinished) return true;
  if (!is_alone()) {
    base::expects(options_.row_exchanger != nullptr, "poll: several ranks need ShardedTableOptions::row_exchanger");
    base::expects(exchanger_->takes_capacities() && options_.device->is_host(),
                  "poll: several ranks need an exchanger that takes capacities, and host memory");
    base::expects(state.stage != LookupStage::kReadAhead, "poll: the batch is read ahead");
    base::expects(state.stage != LookupStage::kFailed, "the lookup of the batch has failed");
    auto const is_ready = [&](auto& exchange) {
      ExchangeScope scope(is_broken_, /*is_alone=*/false);
      auto const stage = std::exchange(state.stage, LookupStage::kFailed);  // It stays so after an exception.
      bool const result = exchange.is_ready();
      state.stage = stage;
      scope.succeed();
      return result;
    };
    if (state.stage < LookupStage::kEmbeddingsSent && !order_->is_first(state.number)) return false;
    if (state.stage < LookupStage::kLookedUp && !is_ready(*state.keys)) return false;
    advance(batch, LookupStage::kEmbeddingsSent);
    if (!is_ready(*state.embeddings)) return false;
  }
  advance(batch, LookupStage::kFinished);
  return true;
}

void ShardedTable::take_sizes(Batch& batch) {
  auto& state = *batch.state_;
  if (is_alone()) return;
  auto sent = state.keys->start_keys();
  auto const own = static_cast<std::size_t>(exchanger_->rank());
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    auto& lookup = state.lookups[merged];
    lookup.sent = std::move(sent[merged]);
    lookup.unique.size = sum_of(lookup.sent);
    traffic_.keys_routed += *lookup.unique.size;
    traffic_.id_bytes += (*lookup.unique.size - lookup.sent[own]) * 2 * sizeof(std::uint64_t);
  }
}

void ShardedTable::receive_keys(Batch& batch) {
  if (is_alone()) return;
  auto& state = *batch.state_;
  auto received = std::exchange(state.keys, nullptr)->finish();
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    auto& lookup = state.lookups[merged];
    traffic_.keys_received += received[merged].ids.size();
    lookup.keys = std::move(received[merged]);
    lookup.received = lookup.keys.sizes;
  }
}

// Keys of one rank go straight to the second stage.
void ShardedTable::take_keys(Batch& batch) {
  auto& state = *batch.state_;
  apply_deferred();
  receive_keys(batch);
  bool const counts_refused = state.options.counts_refused;  // Also with kRead: ranks may be in different modes.
  if (counts_refused) {
    state.refused = options_.device->block<float>(tables_.size());
    options_.device->clear(std::as_writable_bytes(state.refused.span));
  }
  std::vector<SizeTerm> unknown;
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    auto& lookup = state.lookups[merged];
    if (is_alone()) {
      lookup.in_rows = options_.dedup == Dedup::kFirst || options_.dedup == Dedup::kBoth;
      if (!lookup.in_rows) lookup.owned = unique(lookup.unique.keys(), Dedup::kSecond);
      count_keys(lookup.unique, {&traffic_.keys_routed, &traffic_.keys_received}, 0, unknown);
    } else {
      lookup.owned = unique(std::exchange(lookup.keys, {}).keys(), Dedup::kSecond);
    }
    count_keys(lookup.found(), {&traffic_.keys_found}, 1, unknown);
    look_up(batch, merged, counts_refused ? state.refused.data() + merged : nullptr);
  }
  if (!unknown.empty()) options_.device->add_sizes(unknown);
}

void ShardedTable::count_keys(UniqueBlocks const& keys, std::initializer_list<std::uint64_t*> totals, std::size_t index,
                              std::vector<SizeTerm>& unknown) const {
  if (!keys.size)
    return unknown.push_back({.size = keys.size_on_device.data(), .total = &unknown_traffic_.span[index]});
  for (auto* const total : totals) *total += *keys.size;
}

void ShardedTable::look_up(Batch& batch, std::size_t merged, float* refused) {
  auto& state = *batch.state_;
  auto& lookup = state.lookups[merged];
  Table& table = *tables_[merged];
  if (state.options.mode == LookupMode::kInsert) return insert(lookup, merged, refused);
  Keys const keys = lookup.found().keys();
  lookup.rows = options_.device->block<RowId>(keys.size());
  table.find(keys, lookup.rows.span, {});
  lookup.masks_unknown = state.options.masks_unknown && merged_[merged].reads_unknown_as_zeros;
  lookup.num_replaced = num_replaced_[merged];
  lookup.generation = table.generation();
}

void ShardedTable::insert(TableLookup& lookup, std::size_t merged, float* refused) {
  Keys const keys = lookup.found().keys();
  lookup.rows = options_.device->block<RowId>(keys.size());
  auto const statuses = options_.device->block<KeyStatus>(keys.size());
  tables_[merged]->find_or_insert(keys, lookup.rows.span, statuses.span);
  if (refused != nullptr) options_.device->count_refused(statuses.span, refused);
  lookup.num_replaced = num_replaced_[merged];
  lookup.generation = tables_[merged]->generation();
}

Block<float> ShardedTable::gather(Batch const& batch, std::size_t merged) const {
  auto const& lookup = batch.state_->lookups[merged];
  if (lookup.in_rows && !batch.state_->options.keeps_embeddings) return {};
  auto const& found = lookup.found();
  auto const rows = present_rows(lookup, merged);  // Another batch may have moved some since look_up().
  std::size_t const dim = widths_[merged];
  if (lookup.in_rows) {
    auto values = options_.device->block<float>(found.num_rows() * dim);
    tables_[merged]->gather(found.keys(), rows.span, values.span);
    if (lookup.masks_unknown) options_.device->mask_rows(lookup.rows.span, dim, values.span);
    return values;
  }
  auto values = options_.device->block<float>(found.inverse_indices.size() * dim);
  auto const weights = weights_of(lookup, {});
  tables_[merged]->gather_bags(found.keys(), rows.span, found.inverse_indices.span, {.weights = weights.span},
                               values.span);
  return values;
}

Block<float> ShardedTable::weights_of(TableLookup const& lookup, Block<float> const& weights) const {
  if (!lookup.masks_unknown) return weights;
  auto const& found = lookup.found();
  auto masked = options_.device->block<float>(found.inverse_indices.size());
  options_.device->mask_weights(lookup.rows.span, found.inverse_indices.span, weights.span, masked.span);
  return masked;
}

// The block to each rank ends with the numbers of keys that this rank refused, one for each merged table. They are
// exact in float32 below 2^24.
void ShardedTable::send_embeddings(Batch& batch) {
  auto& state = *batch.state_;
  std::vector<SentRows> rows;
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    auto& lookup = state.lookups[merged];
    auto values = gather(batch, merged);
    if (is_alone()) {
      lookup.embeddings = std::move(values);
    } else {
      rows.push_back(
          {.values = std::move(values), .width = widths_[merged], .sent = lookup.received, .received = lookup.sent});
    }
  }
  state.leave_order();
  if (is_alone()) return;
  auto& exchanger = options_.row_exchanger == nullptr ? *exchanger_ : *options_.row_exchanger;
  state.embeddings = std::make_unique<RowExchange>(*options_.device, exchanger, rows, state.refused);
  traffic_.vector_bytes += state.embeddings->num_sent() * sizeof(float);
}

void ShardedTable::take_embeddings(Batch& batch) {
  auto& state = *batch.state_;
  if (is_alone()) return;
  auto const exchange = std::exchange(state.embeddings, nullptr);
  auto values = exchange->finish();
  for (std::size_t merged = 0; merged < values.size(); ++merged) {
    state.lookups[merged].embeddings = std::move(values[merged]);
  }
  state.refused = exchange->flags();
}

std::uint64_t ShardedTable::num_refused(Batch const& batch, std::size_t merged) const {
  auto const& state = *batch.state_;
  base::expects(state.stage == LookupStage::kFinished, "num_refused: the batch is not finished");
  auto const numbers = options_.device->read(std::span<float const>(state.refused.span));
  std::uint64_t sum = 0;
  for (std::size_t i = merged; i < numbers.size(); i += tables_.size()) sum += static_cast<std::uint64_t>(numbers[i]);
  return sum;
}

Block<float> const& ShardedTable::own_refused(Batch const& batch) const { return batch.state_->refused; }

void ShardedTable::expect_own(Batch const& batch) const {
  base::expects(batch.state_->owner == this, "the lookup of this batch has begun in other tables");
}

bool ShardedTable::are_rows_current(TableLookup const& lookup, std::size_t merged) const {
  return !lookup.is_in_parts && lookup.num_replaced == num_replaced_[merged] &&
         lookup.generation == tables_[merged]->generation();
}

Block<RowId> ShardedTable::find(Keys const& keys, std::size_t merged) const {
  auto rows = options_.device->block<RowId>(keys.size());
  tables_[merged]->find(keys, rows.span, {});
  return rows;
}

Block<RowId> ShardedTable::present_rows(TableLookup const& lookup, std::size_t merged) const {
  // Otherwise rows of other keys, or of these, were removed or moved.
  return are_rows_current(lookup, merged) ? lookup.rows : find(lookup.found().keys(), merged);
}

void ShardedTable::expand(Batch const& batch, std::size_t merged, std::span<float> out) {
  expect_own(batch);
  auto const& state = *batch.state_;
  base::expects(state.stage == LookupStage::kFinished, "expand: the batch is not finished");
  auto const& lookup = state.lookups[merged];
  if (!lookup.in_rows) {
    return options_.device->expand(lookup.unique, lookup.inputs.bags(), widths_[merged], lookup.embeddings.span, out);
  }
  auto const rows = present_rows(lookup, merged);
  if (!are_rows_current(lookup, merged) && options_.device->is_host()) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      base::expects(rows.span[i] != RowId::kNone || lookup.rows.span[i] == RowId::kNone,
                    "expand: rows of the batch were removed after finish()");
    }
  }
  auto const weights = weights_of(lookup, lookup.inputs.weights);
  tables_[merged]->gather_bags(lookup.unique.keys(), rows.span, lookup.unique.inverse_indices.span,
                               {.offsets = lookup.inputs.offsets.span, .weights = weights.span}, out);
}

void ShardedTable::read_only(Batch& batch) {
  base::expects(batch.state_->stage < LookupStage::kLookedUp, "read_only: the batch has been looked up");
  batch.state_->options.mode = LookupMode::kRead;
}

void ShardedTable::forget_embeddings(Batch& batch) {
  if (batch.state_->options.keeps_embeddings) return;
  for (auto& lookup : batch.state_->lookups) lookup.embeddings = {};
}

Block<float> const& ShardedTable::embeddings(Batch const& batch, std::size_t merged) const {
  auto const& state = *batch.state_;
  base::expects(state.stage == LookupStage::kFinished, "embeddings: the batch is not finished");
  base::expects(!state.lookups[merged].in_rows || state.options.keeps_embeddings,
                "embeddings: the batch of one rank was begun without keeps_embeddings");
  return state.lookups[merged].embeddings;
}

UniqueBlocks const& ShardedTable::unique_keys(Batch const& batch, std::size_t merged) const {
  return batch.state_->lookups[merged].unique;
}

Traffic ShardedTable::traffic() const {
  Traffic all = traffic_;
  auto const unknown = options_.device->read(std::span<std::uint64_t const>(unknown_traffic_.span));
  all.keys_routed += unknown[0];
  all.keys_received += unknown[0];
  all.keys_found += unknown[1];
  all.keys_ahead += unknown[2];
  all.collisions += unknown[3];
  return all;
}

}  // namespace headway::embedding
