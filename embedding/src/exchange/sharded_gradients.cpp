// SPDX-License-Identifier: Apache-2.0

// Gradients of a ShardedTable: the way back of a lookup, and the update of the rows. A merged table stands for tables
// of equal options that share storage and exchanges; widths_ has the dim of each.
//
// Idea: a rank adds the gradients of the bags of each unique key, and sends the sums to the keys' owners. An owner
// keeps what it gets until the update, and adds it as late as possible. With one rank that removes duplicates first
// nothing is sent: the update reads the gradients of the bags itself, and sums are not stored. If anything else reads a
// sum first (the norm, a factor, a second batch with the same keys), sums_of() adds it once and keeps it.
//
// Example: bags [5, 6] and [5] with gradients g0 and g1. The unique keys 5 and 6 get the sums g0 + g1 and g0. If a
// second batch has gradient h for 6, apply_gradients() makes one update: 5 by g0 + g1, and 6 by g0 + h.
//
// Invariants: a gradient is applied if its key has a row at that time, and dropped if it has none.
//   Gradients are added in the order of ranks, for each rank in the order of its batch, and for several batches in the
//   order of return_gradients(): same bits in every run. A row takes one update in a step.
//
//   On a CUDA device only the device knows whether any rank has a gradient of a table. If none has, the number of keys
//   of the gradient is 0 there, and the update does nothing.
// Complexity: 1 all-to-all for all merged tables, and one to agree on a norm. O(K dim) operations.
// Source: MTGRBoost, section 4.3 and figure 8.

#include "exchange/lookup_state.hpp"
#include "headway/base/status.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace headway::embedding {

/// Keys and their sums, with their memory.
struct ShardedTable::Sums {
  KeyValues of_keys;
  std::span<float> values;  ///< The same values, to change.
  UniqueBlocks keys_memory{};
  Block<float> values_memory{};
};

void ShardedTable::return_gradients(Batch& batch, std::span<std::span<float const> const> gradients) {
  std::vector<GradientRows> rows;
  for (auto const& each : gradients) rows.push_back({.values = {.span = each}});
  return_gradients(batch, rows);
}

void ShardedTable::return_gradients(Batch& batch, std::span<GradientRows const> gradients, float factor) {
  start_gradients(batch, gradients, factor);
  static_cast<void>(finish_gradients(batch));
}

void ShardedTable::start_gradients(Batch& batch, std::span<GradientRows const> gradients, float factor) {
  expect_own(batch);
  auto& state = *batch.state_;
  base::expects(state.stage == LookupStage::kFinished, "return_gradients: the batch is not finished");
  base::expects(state.gradients == nullptr, "start_gradients: those before have not been finished");
  base::expects(gradients.size() == tables_.size(), "return_gradients: gradients of each merged table, or empty ones");
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    auto const num_values = gradients[merged].values.size();
    base::expects(num_values == 0 || num_values == state.lookups[merged].inputs.num_bags * widths_[merged],
                  "return_gradients: one gradient for each bag of a merged table");
  }
  bool const is_split = is_reading_ahead();
  base::expects(!is_split || std::ranges::find(ahead_->present, batch.state_) != ahead_->present.end(),
                "return_gradients: read_ahead() was called without this batch of the present step");
  ExchangeScope scope(is_broken_, is_alone());
  follow_ahead();
  if (is_split) take_early();
  auto result = std::make_unique<Gradients>();
  result->marks.resize(tables_.size());
  result->first_keys.reserve(tables_.size());  // Gradients point to them.
  result->later_keys.reserve(tables_.size());
  std::vector<float> are_there;
  std::vector<SentRows> rows;
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    auto& lookup = state.lookups[merged];
    auto const& values = gradients[merged].values;
    if (lookup.is_in_parts && !is_split) {
      lookup.owned = unique(std::exchange(lookup.keys, {}).keys(), Dedup::kSecond);
      lookup.is_in_parts = false;
      lookup.num_replaced = kNotLookedUp;
    }
    bool const is_there = gradients[merged].is_there || !values.empty();
    are_there.push_back(is_there ? 1 : 0);
    auto& gradient = result->of_tables.emplace_back(TableGradient{.lookup = &lookup,
                                                                  .is_there = is_there,
                                                                  .may_change = gradients[merged].may_change,
                                                                  .was_read = state.options.mode == LookupMode::kRead});
    if (lookup.in_rows) {
      gradient.values = values;
      gradient.factor = factor;
      continue;
    }
    auto sums = reduce(lookup, merged, values, factor);
    if (is_alone()) {
      gradient.values = {.span = sums.span, .owner = sums.owner};
    } else {
      auto& mark = result->marks[merged];
      if (!values.empty()) {
        mark = options_.device->block<float>(1);
        options_.device->mark_finite(sums.span, mark.data());
      }
      if (is_split) {
        rows.push_back(split_sums(*result, lookup, merged, sums));
        gradient.lookup = &result->first_keys.back();
      } else {
        rows.push_back(
            {.values = std::move(sums), .width = widths_[merged], .sent = lookup.sent, .received = lookup.received});
      }
    }
  }
  if (!is_alone()) {
    auto flags = options_.device->block<float>(are_there.size());
    options_.device->write(are_there, flags.span);
    if (is_split) flags = joined(std::vector{flags, finite_marks(result->marks)});
    result->exchange = std::make_unique<RowExchange>(*options_.device, *exchanger_, rows, flags);
    traffic_.gradient_bytes += result->exchange->num_sent() * sizeof(float);
  }
  state.gradients = std::move(result);
  scope.succeed();
}

Block<float> ShardedTable::finite_marks(std::span<Block<float> const> marks) const {
  auto result = options_.device->block<float>(marks.size());
  options_.device->fill(result.span, 1);
  std::vector<CopyPiece> pieces;
  for (std::size_t merged = 0; merged < marks.size(); ++merged) {
    if (marks[merged].empty()) continue;
    pieces.push_back({.to = result.data() + merged, .from = marks[merged].data(), .num_bytes = sizeof(float)});
  }
  options_.device->copy(pieces);
  return result;
}

Block<float> ShardedTable::reduce(TableLookup const& lookup, std::size_t merged, Block<float const> const& values,
                                  float factor) const {
  auto sums = options_.device->block<float>(lookup.unique.num_rows() * widths_[merged]);
  if (values.empty()) {
    options_.device->clear(std::as_writable_bytes(sums.span));
    return sums;
  }
  Bags bags = lookup.inputs.bags();
  auto const weights = scaled_weights(lookup.inputs.weights, factor, lookup.unique);
  bags.weights = weights.span;
  options_.device->reduce(lookup.unique, bags, widths_[merged], values.span, sums.span);
  return sums;
}

Block<float> ShardedTable::scaled_weights(Block<float> const& weights, float factor, UniqueBlocks const& unique) const {
  if (factor == 1) return weights;
  auto scaled = options_.device->block<float>(unique.inverse_indices.size());
  if (weights.empty()) {
    options_.device->fill(scaled.span, factor);
    return scaled;
  }
  CopyPiece const all{.to = scaled.data(), .from = weights.data(), .num_bytes = scaled.span.size_bytes()};
  options_.device->copy({&all, 1});
  options_.device->scale(scaled.span, factor);
  return scaled;
}

std::vector<Block<float>> ShardedTable::finish_gradients(Batch& batch) {
  base::expects(batch.state_->gradients != nullptr, "finish_gradients: none have been started");
  ExchangeScope scope(is_broken_, is_alone());
  auto result = std::move(batch.state_->gradients);
  result->batch = batch.state_;
  if (!is_alone()) {
    auto const exchange = std::exchange(result->exchange, nullptr);
    auto received = exchange->finish();
    auto const& flags = result->flags = exchange->flags();
    // (ranks, stride) 1: the rank has gradients of the merged table. If they are split, the marks of all sums follow.
    std::size_t const stride = result->later_keys.empty() ? tables_.size() : 2 * tables_.size();
    for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
      auto& gradient = result->of_tables[merged];
      gradient.values = {.span = received[merged].span, .owner = received[merged].owner};
      if (!options_.device->is_host()) {
        gradient.is_there = true;
        gradient.num_keys = options_.device->count_if_any(gradient.lookup->found().keys(), flags.span, merged, stride);
      } else {
        for (std::size_t i = merged; i < flags.size(); i += stride) {
          gradient.is_there = gradient.is_there || flags.span[i] != 0;
        }
      }
      if (result->later_keys.empty()) continue;
      std::vector<Block<float>> of_ranks;  // Other ranks do not get the later part, so its marks are sent.
      for (std::size_t i = tables_.size() + merged; i < flags.size(); i += stride) {
        of_ranks.push_back({.span = flags.span.subspan(i, 1), .owner = flags.owner});
      }
      result->marks[merged] = joined(of_ranks);
      auto& later = result->later.emplace_back(TableGradient{
          .lookup = &result->later_keys[merged], .is_there = gradient.is_there, .was_read = gradient.was_read});
      if (options_.device->is_host()) continue;
      later.num_keys = options_.device->count_if_any(later.lookup->found().keys(), flags.span, merged, stride);
    }
  }
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    auto& gradient = result->of_tables[merged];
    if (gradient.is_there && gradient.may_change && gradient.lookup->in_rows) {
      static_cast<void>(sums_of(gradient, merged));
    }
  }
  result->made = options_.device->record();
  auto marks = std::move(result->marks);
  pending_.push_back(std::move(result));
  scope.succeed();
  return marks;
}

bool ShardedTable::reads_gradients_later(Batch const& batch, std::size_t merged) const {
  return batch.state_->lookups[merged].in_rows;
}

void ShardedTable::weight_gradients(Batch const& batch, std::size_t merged, std::span<float const> gradients,
                                    std::span<float> out) {
  auto const& lookup = batch.state_->lookups[merged];
  auto const& inputs = lookup.inputs;
  std::size_t const dim = widths_[merged];
  base::expects(options_.device->is_host(), "weight_gradients: tables are in the memory of a device");
  base::expects(batch.state_->stage == LookupStage::kFinished && batch.state_->options.keeps_embeddings,
                "weight_gradients: the batch is not finished, or was begun without keeps_embeddings");
  base::expects(gradients.size() == inputs.num_bags * dim, "weight_gradients: one gradient for each bag");
  base::expects(out.size() == inputs.ids.size(), "weight_gradients: room for one number for each id");
  for (std::size_t bag = 0; bag < inputs.num_bags; ++bag) {
    auto const first = inputs.offsets.empty() ? bag : static_cast<std::size_t>(inputs.offsets.span[bag]);
    auto const end = inputs.offsets.empty() ? bag + 1 : static_cast<std::size_t>(inputs.offsets.span[bag + 1]);
    bool const is_mean = !inputs.are_means.empty() && inputs.are_means[bag];
    float const divisor = is_mean ? static_cast<float>(end - first) : 1;
    for (std::size_t i = first; i < end; ++i) {
      float const* const embedding = lookup.embeddings.data() + lookup.unique.inverse_indices.span[i] * dim;
      float sum = 0;
      for (std::size_t column = 0; column < dim; ++column) {
        sum += embedding[column] * (gradients[bag * dim + column] / divisor);
      }
      out[i] = sum;
    }
  }
}

std::vector<ShardedTable::TableGradient*> ShardedTable::pending(std::size_t merged) {
  std::vector<TableGradient*> result;
  for (auto const& gradients : pending_) {
    if (!gradients->of_tables[merged].is_there) continue;
    options_.device->wait_for(gradients->made);
    options_.device->wait_for(gradients->of_tables[merged].added);
    result.push_back(&gradients->of_tables[merged]);
    if (gradients->is_complete && !gradients->later.empty()) result.push_back(&gradients->later[merged]);
  }
  return result;
}

bool ShardedTable::has_gradients(std::size_t merged) const {
  return std::ranges::any_of(pending_, [merged](auto const& each) { return each->of_tables[merged].is_there; });
}

std::vector<KeyValues> ShardedTable::add_gradients(std::size_t merged, std::size_t first) {
  std::vector<KeyValues> result;
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    auto& gradient = pending_[i]->of_tables[merged];
    if (!gradient.is_there) continue;
    options_.device->wait_for(pending_[i]->made);
    options_.device->wait_for(gradient.added);
    auto const sums = sums_of(gradient, merged);
    if (i >= first) result.push_back({.keys = gradient.keys(), .values = sums});
  }
  return result;
}

std::span<float> ShardedTable::sums_of(TableGradient& gradient, std::size_t merged) {
  if (!gradient.sums) {
    auto const& lookup = *gradient.lookup;
    if (lookup.in_rows) {
      gradient.sums = reduce(lookup, merged, gradient.values, gradient.factor);
    } else {
      auto sums = options_.device->block<float>(lookup.owned.num_rows() * widths_[merged]);
      options_.device->reduce(lookup.owned, {}, widths_[merged], gradient.values.span, sums.span);
      gradient.sums = std::move(sums);
    }
    gradient.values = {};
    gradient.added = options_.device->record();
  }
  return gradient.sums->span;
}

ShardedTable::Sums ShardedTable::once_each(std::span<TableGradient* const> gradients, std::size_t merged) {
  if (gradients.size() == 1 && !may_repeat()) {
    auto const sums = sums_of(*gradients.front(), merged);
    return {.of_keys = {.keys = gradients.front()->keys(), .values = sums}, .values = sums};
  }
  std::vector<KeyValues> pieces;
  for (auto* const gradient : gradients) {
    pieces.push_back({.keys = gradient->keys(), .values = sums_of(*gradient, merged)});
  }
  auto const all = options_.device->concatenate(pieces, widths_[merged]);
  auto once = options_.device->deduplicate(all.keys());
  auto sums = options_.device->block<float>(once.num_rows() * widths_[merged]);
  options_.device->reduce(once, {}, widths_[merged], all.values.span, sums.span);
  Keys const keys = once.keys();
  return {.of_keys = {.keys = keys, .values = sums.span},
          .values = sums.span,
          .keys_memory = std::move(once),
          .values_memory = sums};
}

void ShardedTable::apply_gradients(std::uint64_t number, StepRates const& rates, float divisor) {
  std::vector<TableStep> const steps(tables_.size(), {.number = number, .rates = rates, .divisor = divisor});
  apply_gradients(steps);
}

void ShardedTable::apply_gradients(std::span<TableStep const> steps) {
  base::expects(steps.size() == tables_.size(), "apply_gradients: a step for each merged table");
  for (auto const& step : steps) {
    base::expects(step.number > 0, "apply_gradients: steps count from 1");
    base::expects(std::isfinite(step.divisor) && step.divisor != 0, "apply_gradients: the divisor is 0 or not finite");
  }
  for (auto const& [table, merged] : merged_of_) {
    base::expects(std::isfinite(steps[merged].rates.of(table)),
                  "apply_gradients: the rate of table " + std::to_string(table) + " is not finite");
  }
  follow_ahead();
  drain();
  if (applied_ != nullptr) options_.device->wait_for(applied_->done);
  applied_ = nullptr;
  struct DropAtEnd {  // Also after an exception: a second call must not apply a gradient twice.
    std::vector<std::unique_ptr<Gradients>>& pending;
    ~DropAtEnd() { pending.clear(); }
  } const drop_at_end{pending_};
  if (is_reading_ahead()) return apply_first(steps);
  complete_gradients();
  apply(steps);
}

void ShardedTable::apply(std::span<TableStep const> steps) {
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    if (auto const gradients = pending(merged); !gradients.empty()) update(merged, gradients, steps[merged]);
  }
}

void ShardedTable::drop_gradients() { pending_.clear(); }

void ShardedTable::scale_gradients(float factor) {
  complete_gradients();
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    for (auto* const gradient : pending(merged)) options_.device->scale(sums_of(*gradient, merged), factor);
  }
}

void ShardedTable::scale_gradients(std::size_t merged, float const* factor) {
  complete_gradients();
  for (auto* const gradient : pending(merged)) options_.device->scale_by(sums_of(*gradient, merged), factor);
}

Block<double> ShardedTable::gradient_squares(std::size_t merged) {
  complete_gradients();
  auto squares = options_.device->block<double>(1);
  options_.device->clear(std::as_writable_bytes(squares.span));
  auto const gradients = pending(merged);
  if (gradients.empty()) return squares;
  auto const sums = once_each(gradients, merged);
  options_.device->add_squares(sums.of_keys, widths_[merged], squares.data());
  return squares;
}

double ShardedTable::gradient_norm() {
  complete_gradients();
  ExchangeScope scope(is_broken_, is_alone());
  std::size_t const count = tables_.size();
  auto const num_ranks = static_cast<std::size_t>(exchanger_->size());
  std::vector<std::size_t> const sizes(num_ranks, count);
  RankBlocks<double> const own(*options_.device, sizes), all(*options_.device, sizes);
  std::vector<Block<double>> squares;
  std::vector<CopyPiece> pieces;
  for (std::size_t merged = 0; merged < count; ++merged) {
    squares.push_back(gradient_squares(merged));
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      pieces.push_back({.to = &own[rank][merged], .from = squares.back().data(), .num_bytes = sizeof(double)});
    }
  }
  options_.device->copy(pieces);
  if (!is_alone()) start_exchange(*exchanger_, own, all)->wait();
  double total = 0;
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    auto const& blocks = is_alone() ? own : all;
    for (double const square : options_.device->read(std::span<double const>(blocks[rank]))) total += square;
  }
  scope.succeed();
  return std::sqrt(total);
}

// A key may have got a row since the lookup, by another batch. Only the host can see that a key had none.
Block<RowId> ShardedTable::rows_to_update(TableGradient const& gradient, std::size_t merged) const {
  auto const& lookup = *gradient.lookup;
  auto const rows = present_rows(lookup, merged);
  bool const may_lack_row = options_.device->is_host() ? std::ranges::find(rows.span, RowId::kNone) != rows.span.end()
                                                       : merged_[merged].options.min_count > 1 || gradient.was_read;
  return may_lack_row ? find(lookup.found().keys(), merged) : rows;
}

void ShardedTable::update(std::size_t merged, std::span<TableGradient* const> gradients, TableStep const& step) {
  Table& table = *tables_[merged];
  auto const& numbers = merged_[merged].tables;
  double const rate = step.rates.of(numbers.front());
  kernels::OptimizerStep const of_rows{.learning_rate = rate, .number = step.number};
  bool const has_one_rate = std::ranges::all_of(numbers, [&](auto each) { return step.rates.of(each) == rate; });
  auto& first = *gradients.front();
  auto const& lookup = *first.lookup;
  if (gradients.size() == 1 && !may_repeat() && has_one_rate && !first.sums) {
    Bags bags = first.bags();
    Block<float> const own{.span = lookup.in_rows ? lookup.inputs.weights.span : std::span<float>()};
    auto const weights = scaled_weights(own, first.factor / step.divisor, lookup.found());
    bags.weights = weights.span;
    auto const rows = rows_to_update(first, merged);
    return table.update_bags(first.keys(), rows.span, lookup.found().csr(), bags, first.values.span, of_rows);
  }
  auto const sums = once_each(gradients, merged);
  if (step.divisor != 1) options_.device->divide(sums.values, step.divisor);
  auto const rows = find(sums.of_keys.keys, merged);
  if (has_one_rate) return table.update(sums.of_keys.keys, rows.span, sums.of_keys.values, of_rows);
  update_by_table(merged, sums.of_keys, rows.span, step);
}

// Tables of one merged table learn at different rates: one update for each, of its own keys.
void ShardedTable::update_by_table(std::size_t merged, KeyValues const& sums, std::span<RowId const> rows,
                                   TableStep const& step) {
  for (auto const table : merged_[merged].tables) {
    auto const of_table = options_.device->select_table(sums, rows, widths_[merged], table);
    if (of_table.ids.empty()) continue;
    tables_[merged]->update(of_table.keys(), of_table.rows.span, of_table.values.span,
                            {.learning_rate = step.rates.of(table), .number = step.number});
  }
}

}  // namespace headway::embedding
