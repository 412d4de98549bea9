// SPDX-License-Identifier: Apache-2.0

// Prioritized updates: a step's embeddings are read while the step before computes, and no row is stale.
//
// Idea: a row may be read for step t + 1 once every update of steps before has reached it. When the keys of t + 1 reach
// their owner, only the rows that step t will update have to wait. All others are read and sent at once (read_ahead()).
// After the backward pass of t, gradients of the rows that t + 1 waits for are sent before the others. They are
// applied, and these rows are sent (apply_gradients()). The other gradients of t travel while t + 1 computes, and are
// applied before anything is read for t + 2 (drain()).
//
// A key is shared, or a collision, if both steps have it. `before` splits the keys of t + 1: shared ones are read late,
// others early. `after` splits those of t: gradients of shared ones are first, those of others later.
//
// Example: 2 ranks, one of which owns the keys 5, 6 and 7. Step t has the keys 5 and 6 on both ranks, and t + 1 has 6
// and 7. read_ahead() reads 7, and tells both ranks that 6 is shared. apply_gradients() gets the gradients of 6,
// updates it, and sends it. The gradients of 5 are on their way, and drain() applies them.
//
//   rank          forward t      backward t           update t            forward t + 1     ...  read_ahead(t + 2)
//   exchanges     7, marks -->                6 (gradients) -> 6 (rows) ->  5 (gradients) -->    drain: 5 is updated
//
// Invariants: results have the bits of lookups after the update. A key is shared whether or not it has a row, and
//   whichever ranks have it. So a shared key is counted, promoted to float32, or given a row after the update, as it
//   would be without this. If a table has a limit, keys without a row are read late, too, and inserted together
//   (mark_shared()). Every other key is in one of the steps alone, so the order of its lookup and its update is the
//   same. A row takes one update in a step, with the step's number and rate: parts of a step have no key in common.
//   begin_step() of t + 1 comes before read_ahead(). Rows of t are in use then, so begin_step() evicts none of them.
// Complexity: 4 all-to-alls instead of 2 after the keys: early rows with marks, first gradients, late rows, and later
//   gradients. Memory and time are O(keys of both steps). The message with early rows has zeros for shared ones, so
//   both ranks know its size.
// Source: FreeScale (MLSys 2026), prioritized embedding updates.
//
// In shapes, U is the number of unique keys that a rank has sent, V of those that it has received as an owner, and W of
// the unique ones among these.

#include "exchange/lookup_state.hpp"
#include "headway/base/status.hpp"

#include <algorithm>
#include <set>
#include <utility>

namespace headway::embedding {

bool ShardedTable::is_reading_ahead() const { return ahead_ != nullptr && !ahead_->is_late_read; }

void ShardedTable::expect_may_read_ahead(std::span<Batch* const> next, std::span<Batch* const> present) const {
  base::expects(options_.row_exchanger == nullptr, "read_ahead: tables with a row_exchanger are for lookups alone");
  std::set<Batch::State const*> seen;
  for (auto* const batch : next) {
    expect_own(*batch);
    base::expects(batch->state_->stage < LookupStage::kLookedUp && batch->state_->options.mode == LookupMode::kInsert,
                  "read_ahead: a batch of the next step was looked up before, or inserts nothing");
    base::expects(seen.insert(batch->state_.get()).second, "read_ahead: a batch is given twice");
  }
  for (auto* const batch : present) {
    expect_own(*batch);
    base::expects(batch->state_->stage == LookupStage::kFinished, "read_ahead: a batch of this step is not finished");
    base::expects(seen.insert(batch->state_.get()).second, "read_ahead: a batch is given twice");
  }
  for (auto const& gradients : pending_) {
    base::expects(seen.contains(gradients->batch.get()),
                  "read_ahead: gradients of another batch than those of this step are pending");
  }
  base::expects(!has_ahead(), "read_ahead: batches that were read ahead before are not finished, nor forgotten");
}

bool ShardedTable::has_ahead() const {
  return ahead_ != nullptr &&
         std::ranges::any_of(ahead_->next, [](auto const& each) { return each->stage == LookupStage::kReadAhead; });
}

void ShardedTable::forget_ahead() {
  if (ahead_ == nullptr) return;
  follow_ahead();
  for (auto const& state : ahead_->next) {
    if (state->stage == LookupStage::kReadAhead) state->stage = LookupStage::kFailed;
  }
  ahead_ = nullptr;
}

void ShardedTable::read_ahead(std::span<Batch* const> next, std::span<Batch* const> present) {
  expect_may_read_ahead(next, present);
  auto ahead = std::make_unique<Ahead>();
  for (auto* const batch : next) ahead->next.push_back(batch->state_);
  for (auto* const batch : present) ahead->present.push_back(batch->state_);
  ahead_ = nullptr;
  if (is_alone()) return;
  drain();
  ExchangeScope scope(is_broken_, is_alone());
  for (auto* const batch : next) {
    auto& state = *batch->state_;
    auto const before = std::exchange(state.stage, LookupStage::kFailed);  // Left so if something throws.
    if (before == LookupStage::kBegun) take_sizes(*batch);
    receive_keys(*batch);
    steps_in_use_->remove(std::exchange(state.step, step_));  // The tables are in step t + 1 now.
    steps_in_use_->add(step_);
    if (state.options.counts_refused) {  // Keys without a row as their table is full: early, then late ones.
      state.refused = options_.device->block<float>(2 * tables_.size());
      options_.device->clear(std::as_writable_bytes(state.refused.span));
    }
  }
  std::vector<SentRows> rows;
  std::vector<std::vector<SentRows>> by_batch(next.size() + present.size());
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    std::size_t const width = widths_[merged];
    mark_shared(merged, *ahead);
    for (std::size_t i = 0; i < ahead->next.size(); ++i) {
      auto& state = *ahead->next[i];
      auto& lookup = state.lookups[merged];
      lookup.before.received = split(lookup.before.marks, lookup.received);
      auto early = part_of(lookup, lookup.before.received.others, lookup.before.received.num_others);
      auto const read_rows =
          read(early, merged, state.refused.empty() ? nullptr : state.refused.data() + merged, false);
      auto values = options_.device->block<float>(lookup.before.marks.size() * width);
      options_.device->clear(std::as_writable_bytes(values.span));
      options_.device->scatter_rows(read_rows.span, width, lookup.before.received.others.span, values.span);
      by_batch[i].push_back(
          {.values = std::move(values), .width = width, .sent = lookup.received, .received = lookup.sent});
      by_batch[i].push_back(
          {.values = lookup.before.marks, .width = 1, .sent = lookup.received, .received = lookup.sent});
    }
    for (std::size_t i = 0; i < ahead->present.size(); ++i) {
      auto& lookup = ahead->present[i]->lookups[merged];
      lookup.after.received = split(lookup.after.marks, lookup.received);
      by_batch[next.size() + i].push_back(
          {.values = lookup.after.marks, .width = 1, .sent = lookup.received, .received = lookup.sent});
    }
  }
  for (auto& of_batch : by_batch) rows.insert(rows.end(), of_batch.begin(), of_batch.end());
  ahead->early = std::make_unique<RowExchange>(*options_.device, *exchanger_, rows, Block<float>());
  traffic_.vector_bytes += ahead->early->num_sent() * sizeof(float);
  for (auto const& state : ahead->next) state->stage = LookupStage::kReadAhead;
  ahead->done = options_.device->record();
  ahead_ = std::move(ahead);
  scope.succeed();
}

// The keys of all batches are joined and deduplicated. A unique key with positions on both sides is shared.
void ShardedTable::mark_shared(std::size_t merged, Ahead const& ahead) {
  auto& device = *options_.device;
  std::vector<TableLookup*> lookups;
  std::size_t num_present = 0, num_keys = 0;
  for (auto const& state : ahead.present) {
    auto& lookup = state->lookups[merged];
    if (!lookup.is_in_parts) {  // Its keys were not kept. They follow from `owned`, except their counts, which are not
                                // used.
      lookup.keys = received_keys(device, lookup.received);
      device.select_keys(lookup.owned.keys(), lookup.owned.inverse_indices.span,
                         {lookup.keys.ids.data(), lookup.keys.tables.data(), lookup.keys.counts.data()});
    }
    lookups.push_back(&lookup);
    num_present += lookup.keys.ids.size();
  }
  num_keys = num_present;
  for (auto const& state : ahead.next) {
    lookups.push_back(&state->lookups[merged]);
    num_keys += lookups.back()->keys.ids.size();
  }
  auto const all = received_keys(device, {num_keys});
  std::vector<CopyPiece> pieces;
  std::size_t first = 0;
  for (auto const* const lookup : lookups) {
    auto const& keys = lookup->keys;
    pieces.push_back({.to = all.ids.data() + first, .from = keys.ids.data(), .num_bytes = keys.ids.span.size_bytes()});
    pieces.push_back(
        {.to = all.tables.data() + first, .from = keys.tables.data(), .num_bytes = keys.tables.span.size_bytes()});
    first += keys.ids.size();
  }
  device.copy(pieces);
  auto const unique_keys = device.deduplicate({.ids = all.ids.span, .tables = all.tables.span});
  auto const marks = device.block<float>(num_keys);
  device.mark_shared(unique_keys.inverse_indices.span, num_present, marks.span);
  first = 0;
  for (std::size_t i = 0; i < lookups.size(); ++i) {
    std::size_t const size = lookups[i]->keys.ids.size();
    auto& of_lookup = (i < ahead.present.size() ? lookups[i]->after : lookups[i]->before).marks;
    of_lookup = {.span = marks.span.subspan(first, size), .owner = marks.owner};
    first += size;
  }
  auto const& options = merged_[merged].options;
  if (options.max_rows == TableOptions::kUnlimited) return;
  // The order of insertions decides which keys get the last rows, so all are made together. An insertion that evicts
  // takes rows that later batches have not looked up yet, so several batches are read late as a whole.
  bool const keeps_order = options.eviction != EvictionPolicy::kNone && ahead.next.size() > 1;
  for (auto const& state : ahead.next) {
    auto const& lookup = state->lookups[merged];
    if (keeps_order) device.fill(lookup.before.marks.span, 1);
    if (!keeps_order) device.mark_absent(find(lookup.keys.keys(), merged).span, lookup.before.marks.span);
  }
}

KeySplit ShardedTable::split(Block<float> const& marks, std::span<std::size_t const> sizes) const {
  auto const found = options_.device->split(marks.span, sizes);
  auto const copy = options_.device->fetch(found.counts, [](CudaStream) {});
  auto const counts = copy->wait();
  KeySplit result;
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    result.num_shared.push_back(static_cast<std::size_t>(counts[rank]));
    result.num_others.push_back(static_cast<std::size_t>(counts[sizes.size() + rank]));
  }
  result.shared = found.marked.first(sum_of(result.num_shared));
  result.others = found.others.first(sum_of(result.num_others));
  return result;
}

ShardedTable::TableLookup ShardedTable::part_of(TableLookup const& lookup, Block<std::uint32_t> const& positions,
                                                std::vector<std::size_t> sizes) const {
  auto const keys = received_keys(*options_.device, std::move(sizes));
  options_.device->select_keys(lookup.keys.keys(), positions.span,
                               {keys.ids.data(), keys.tables.data(), keys.counts.data()});
  TableLookup part{.inputs = {}, .unique = {}};
  part.received = keys.sizes;
  part.owned = unique(keys.keys(), Dedup::kSecond);
  part.is_in_parts = true;  // Its rows were not looked up.
  return part;
}

ShardedTable::TableLookup ShardedTable::part_of_unique(TableLookup const& lookup,
                                                       Block<std::uint32_t> const& positions) const {
  auto const keys = received_keys(*options_.device, {positions.size()});
  options_.device->select_keys(lookup.owned.keys(), positions.span,
                               {keys.ids.data(), keys.tables.data(), keys.counts.data()});
  TableLookup part{.inputs = {}, .unique = {}};
  Keys chosen = keys.keys();
  chosen.are_unique = lookup.owned.are_unique;
  part.owned = options_.device->from_unique(chosen);
  part.is_in_parts = true;  // Its rows were not looked up.
  return part;
}

Block<float> ShardedTable::rows_at(std::span<float const> rows, std::size_t width,
                                   Block<std::uint32_t> const& positions) const {
  auto result = options_.device->block<float>(positions.size() * width);
  options_.device->gather_rows(rows, width, positions.span, result.span);
  return result;
}

Block<float> ShardedTable::read(TableLookup& part, std::size_t merged, float* refused, bool is_late) {
  auto const& keys = part.owned;
  std::vector<SizeTerm> unknown;
  count_keys(keys, {&traffic_.keys_found}, 1, unknown);
  count_keys(keys, {&traffic_.keys_ahead}, 2, unknown);
  if (is_late) count_keys(keys, {&traffic_.collisions}, 3, unknown);
  if (!unknown.empty()) options_.device->add_sizes(unknown);
  insert(part, merged, refused);
  auto values = options_.device->block<float>(keys.inverse_indices.size() * widths_[merged]);
  tables_[merged]->gather_bags(keys.keys(), part.rows.span, keys.inverse_indices.span, {}, values.span);
  return values;
}

void ShardedTable::take_ahead() {
  if (!is_reading_ahead()) return;
  ExchangeScope scope(is_broken_, is_alone());
  take_early();
  ahead_->done = options_.device->record();
  scope.succeed();
}

void ShardedTable::follow_ahead() const {
  if (ahead_ != nullptr) options_.device->wait_for(ahead_->done);
}

void ShardedTable::take_early() {
  auto& ahead = *ahead_;
  if (ahead.early == nullptr) return;
  auto rows = std::exchange(ahead.early, nullptr)->finish();
  auto received = rows.begin();
  for (auto const& state : ahead.next) {
    for (auto& lookup : state->lookups) {
      lookup.embeddings = std::move(*received++);
      lookup.before.sent = split(*received++, lookup.sent);
    }
  }
  for (auto const& state : ahead.present) {
    for (auto& lookup : state->lookups) lookup.after.sent = split(*received++, lookup.sent);
  }
}

// A message ends with the numbers of keys that got no row on this rank as a table is full: of early and of late ones,
// for each merged table.
void ShardedTable::read_late() {
  auto& ahead = *ahead_;
  take_early();
  std::vector<SentRows> rows;
  std::vector<Block<float>> refused;
  for (auto const& state : ahead.next) {
    for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
      auto& lookup = state->lookups[merged];
      auto const& before = lookup.before;
      auto late = part_of(lookup, before.received.shared, before.received.num_shared);
      auto* const of_table = state->refused.empty() ? nullptr : state->refused.data() + tables_.size() + merged;
      rows.push_back({.values = read(late, merged, of_table, true),
                      .width = widths_[merged],
                      .sent = before.received.num_shared,
                      .received = before.sent.num_shared});
      lookup.is_in_parts = true;
    }
    refused.push_back(state->refused);
  }
  ahead.late = std::make_unique<RowExchange>(*options_.device, *exchanger_, rows, joined(refused));
  traffic_.vector_bytes += ahead.late->num_sent() * sizeof(float);
  ahead.is_late_read = true;
  ahead.present.clear();
}

Block<float> ShardedTable::joined(std::span<Block<float> const> blocks) const {
  std::size_t size = 0;
  for (auto const& each : blocks) size += each.size();
  auto all = options_.device->block<float>(size);
  std::vector<CopyPiece> pieces;
  std::size_t first = 0;
  for (auto const& each : blocks) {
    pieces.push_back({.to = all.data() + first, .from = each.data(), .num_bytes = each.span.size_bytes()});
    first += each.size();
  }
  options_.device->copy(pieces);
  return all;
}

// The rows of all batches that were read ahead came in one message, so this is done once for all.
void ShardedTable::take_late() {
  auto& ahead = *ahead_;
  if (!ahead.is_late_read) read_late();
  if (ahead.late == nullptr) return;
  auto const exchange = std::exchange(ahead.late, nullptr);
  auto const rows = exchange->finish();
  auto received = rows.begin();
  for (auto const& state : ahead.next) {
    for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
      auto& lookup = state->lookups[merged];
      options_.device->scatter_rows((received++)->span, widths_[merged], lookup.before.sent.shared.span,
                                    lookup.embeddings.span);
      lookup.before = {};
    }
  }
  // (ranks, batches, 2, merged tables) to (ranks, 2, merged tables) of each batch.
  auto const& flags = exchange->flags();
  auto const num_ranks = static_cast<std::size_t>(exchanger_->size());
  std::size_t first = 0;
  for (auto const& state : ahead.next) {
    std::size_t const size = state->refused.size();
    std::vector<Block<float>> of_ranks;
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      of_ranks.push_back(
          {.span = flags.span.subspan(rank * flags.size() / num_ranks + first, size), .owner = flags.owner});
    }
    state->refused = joined(of_ranks);
    first += size;
  }
}

SentRows ShardedTable::split_sums(Gradients& gradients, TableLookup const& lookup, std::size_t merged,
                                  Block<float> const& sums) {
  auto const& [marks, received, sent] = lookup.after;
  gradients.first_keys.push_back(part_of(lookup, received.shared, received.num_shared));
  gradients.later_keys.push_back(part_of(lookup, received.others, received.num_others));
  gradients.later_rows.push_back(rows_at(sums.span, widths_[merged], sent.others));
  return {.values = rows_at(sums.span, widths_[merged], sent.shared),
          .width = widths_[merged],
          .sent = sent.num_shared,
          .received = received.num_shared};
}

void ShardedTable::split_received(Gradients& gradients) {
  auto& device = *options_.device;
  gradients.first_keys.reserve(tables_.size());
  gradients.later_keys.reserve(tables_.size());
  device.wait_for(gradients.made);
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    auto& whole = gradients.of_tables[merged];
    auto const& lookup = *whole.lookup;
    auto const& received = lookup.after.received;
    std::size_t const width = widths_[merged];
    auto& first_keys = gradients.first_keys.emplace_back(part_of(lookup, received.shared, received.num_shared));
    auto& later_keys = gradients.later_keys.emplace_back(part_of(lookup, received.others, received.num_others));
    auto const part = [&](TableLookup const& keys) {
      return TableGradient{.lookup = &keys, .is_there = whole.is_there, .was_read = whole.was_read};
    };
    auto first = part(first_keys), later = part(later_keys);
    if (whole.is_there) {
      device.wait_for(whole.added);
      if (whole.sums) {
        std::size_t const num_rows = lookup.owned.num_rows();
        auto const marks = device.block<float>(num_rows);  // A mark for each unique key; -1 in slots that have none.
        device.fill(marks.span, -1);
        device.reduce(lookup.owned, {}, 1, lookup.after.marks.span, marks.span);
        auto const by_key = split(marks, std::span(&num_rows, 1));
        first_keys = part_of_unique(lookup, by_key.shared);
        later_keys = part_of_unique(lookup, by_key.others);
        first.sums = rows_at(whole.sums->span, width, by_key.shared);
        later.sums = rows_at(whole.sums->span, width, by_key.others);
        first.added = later.added = device.record();
      } else {
        auto const first_rows = rows_at(whole.values.span, width, received.shared);
        auto const later_rows = rows_at(whole.values.span, width, received.others);
        first.values = {.span = first_rows.span, .owner = first_rows.owner};
        later.values = {.span = later_rows.span, .owner = later_rows.owner};
      }
    }
    for (auto* const gradient : {&first, &later}) {
      if (device.is_host()) continue;
      gradient->num_keys =
          device.count_if_any(gradient->lookup->found().keys(), gradients.flags.span, merged, tables_.size());
    }
    whole = std::move(first);
    gradients.later.push_back(std::move(later));
  }
}

void ShardedTable::apply_first(std::span<TableStep const> steps) {
  ExchangeScope scope(is_broken_, is_alone());
  take_early();
  for (auto const& gradients : pending_) {
    if (gradients->first_keys.empty() && !gradients->is_complete) split_received(*gradients);
  }
  apply(steps);
  read_late();
  auto deferred = std::make_unique<Deferred>();
  deferred->steps.assign(steps.begin(), steps.end());
  std::erase_if(pending_, [](auto const& gradients) { return gradients->is_complete; });
  deferred->gradients = std::exchange(pending_, {});
  deferred->exchange = send_later(deferred->gradients);
  deferred_ = std::move(deferred);
  scope.succeed();
}

std::unique_ptr<RowExchange> ShardedTable::send_later(std::span<std::unique_ptr<Gradients> const> all) {
  std::vector<SentRows> rows;
  for (auto const& gradients : all) {
    if (gradients->is_complete) continue;
    options_.device->wait_for(gradients->made);
    for (std::size_t merged = 0; merged < gradients->later_rows.size(); ++merged) {
      auto const& after = gradients->batch->lookups[merged].after;
      rows.push_back({.values = gradients->later_rows[merged],
                      .width = widths_[merged],
                      .sent = after.sent.num_others,
                      .received = after.received.num_others});
    }
  }
  if (rows.empty()) return nullptr;
  auto exchange = std::make_unique<RowExchange>(*options_.device, *exchanger_, rows, Block<float>());
  traffic_.gradient_bytes += exchange->num_sent() * sizeof(float);
  return exchange;
}

void ShardedTable::take_later(std::span<std::unique_ptr<Gradients> const> all, std::unique_ptr<RowExchange> exchange) {
  if (exchange == nullptr) return;
  auto const rows = exchange->finish();
  auto received = rows.begin();
  for (auto const& gradients : all) {
    if (gradients->is_complete || gradients->later_rows.empty()) continue;
    for (auto& later : gradients->later) later.values = {.span = received->span, .owner = (received++)->owner};
    gradients->later_rows.clear();
    gradients->made = options_.device->record();
  }
}

void ShardedTable::drain() {
  if (deferred_ == nullptr) return;
  follow_ahead();
  ExchangeScope scope(is_broken_, is_alone());
  apply_deferred();
  scope.succeed();
}

void ShardedTable::apply_deferred() {
  if (deferred_ == nullptr) return;
  auto deferred = std::exchange(deferred_, nullptr);
  take_later(deferred->gradients, std::exchange(deferred->exchange, nullptr));
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    std::vector<TableGradient*> gradients;
    for (auto const& each : deferred->gradients) {
      if (!each->later[merged].is_there) continue;
      options_.device->wait_for(each->made);
      options_.device->wait_for(each->later[merged].added);
      gradients.push_back(&each->later[merged]);
    }
    if (!gradients.empty()) update(merged, gradients, deferred->steps[merged]);
  }
  if (options_.device->is_host()) return;
  for (auto const& each : deferred->gradients) each->batch->release_rows();
  deferred->done = options_.device->record();
  applied_ = std::move(deferred);
}

void ShardedTable::complete_gradients() {
  bool const is_split =
      std::ranges::any_of(pending_, [](auto const& each) { return !each->is_complete && !each->later_rows.empty(); });
  if (!is_split) return;
  ExchangeScope scope(is_broken_, is_alone());
  auto exchange = send_later(pending_);
  take_later(pending_, std::move(exchange));
  for (auto const& gradients : pending_) gradients->is_complete = true;
  scope.succeed();
}

}  // namespace headway::embedding
