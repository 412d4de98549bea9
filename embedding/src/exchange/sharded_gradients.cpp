// SPDX-License-Identifier: Apache-2.0

// Gradients of a ShardedTable: the way back of a lookup, and the update of the rows.
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
// Complexity: 1 all-to-all for all merged tables, and one to agree on a norm. O(K dim) operations.
// Source: MTGRBoost, section 4.3 and figure 8.

#include "exchange/lookup_state.hpp"
#include "headway/base/status.hpp"

#include <cmath>
#include <utility>

namespace headway::embedding {

namespace {

void append(std::vector<std::uint64_t>& ids, std::vector<std::uint32_t>& tables, Keys const& keys) {
  for (std::size_t i = 0; i < keys.size(); ++i) {
    ids.push_back(keys[i].id);
    tables.push_back(keys[i].table);
  }
}

void divide(std::span<float> values, float divisor) {
  if (divisor == 1) return;
  for (float& value : values) value /= divisor;
}

}  // namespace

void ShardedTable::return_gradients(Batch& batch, std::span<std::span<float const> const> gradients) {
  auto& state = *batch.state_;
  base::expects(state.is_finished, "return_gradients: the batch is not finished");
  base::expects(gradients.size() == tables_.size(), "return_gradients: gradients of each merged table, or empty ones");
  auto const& lookups = state.lookups;
  auto result = std::make_unique<Gradients>();
  result->batch = batch.state_;
  std::vector<float> are_there(lookups.size()), all_are_there;
  std::vector<std::vector<float>> sums(lookups.size());  // (U, dim) of each merged table
  for (std::size_t merged = 0; merged < lookups.size(); ++merged) {
    auto const& lookup = lookups[merged];
    auto const values = gradients[merged];
    base::expects(values.empty() || values.size() == lookup.inputs.num_bags * widths_[merged],
                  "return_gradients: one gradient for each bag of a merged table");
    are_there[merged] = values.empty() ? 0 : 1;
    result->of_tables.push_back({.lookup = &lookup, .is_there = !values.empty(), .values = {}, .sums = {}});
    if (lookup.in_rows) {
      result->of_tables.back().bag_gradients = values;
      continue;
    }
    sums[merged].resize(lookup.unique.size() * widths_[merged]);
    if (!values.empty()) deduplicator_->reduce(lookup.unique, lookup.inputs.bags(), values, sums[merged]);
  }
  ExchangeScope scope(is_broken_);
  if (exchanger_->size() > 1) {
    sums = exchange_rows(*exchanger_, lookups, sums, widths_, &TableLookup::sent, &TableLookup::received, are_there,
                         all_are_there);
  }
  for (std::size_t merged = 0; merged < lookups.size(); ++merged) {
    auto& gradient = result->of_tables[merged];
    gradient.values = std::move(sums[merged]);
    for (std::size_t i = merged; i < all_are_there.size(); i += lookups.size()) {
      gradient.is_there = gradient.is_there || all_are_there[i] != 0;
    }
  }
  pending_.push_back(std::move(result));
  scope.succeed();
}

void ShardedTable::weight_gradients(Batch const& batch, std::size_t merged, std::span<float const> gradients,
                                    std::span<float> out) {
  auto const& state = *batch.state_;
  auto const& lookup = state.lookups[merged];
  auto const& inputs = lookup.inputs;
  std::size_t const dim = widths_[merged];
  base::expects(state.is_finished && state.options.keeps_embeddings,
                "weight_gradients: the batch is not finished, or was begun without keeps_embeddings");
  base::expects(gradients.size() == inputs.num_bags * dim, "weight_gradients: one gradient for each bag");
  base::expects(out.size() == inputs.ids.size(), "weight_gradients: room for one number for each id");
  for (std::size_t bag = 0; bag < inputs.num_bags; ++bag) {
    auto const first = inputs.offsets.empty() ? bag : static_cast<std::size_t>(inputs.offsets[bag]);
    auto const end = inputs.offsets.empty() ? bag + 1 : static_cast<std::size_t>(inputs.offsets[bag + 1]);
    bool const is_mean = !inputs.are_means.empty() && inputs.are_means[bag];
    float const divisor = is_mean ? static_cast<float>(end - first) : 1;
    for (std::size_t i = first; i < end; ++i) {
      float const* const embedding = lookup.embeddings.data() + lookup.unique.inverse_indices[i] * dim;
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
    if (gradients->of_tables[merged].is_there) result.push_back(&gradients->of_tables[merged]);
  }
  return result;
}

std::span<float const> ShardedTable::sums_of(TableGradient& gradient, std::size_t merged) {
  if (!gradient.sums) {
    auto const& lookup = *gradient.lookup;
    std::vector<float> sums(lookup.found().size() * widths_[merged]);
    if (lookup.in_rows) {
      deduplicator_->reduce(lookup.unique, lookup.inputs.bags(), gradient.bag_gradients, sums);
    } else {
      deduplicator_->reduce(lookup.owned, {}, gradient.values, sums);
      gradient.values = {};
    }
    gradient.sums = std::move(sums);
  }
  return *gradient.sums;
}

Keys ShardedTable::once_each(std::span<TableGradient* const> gradients, std::size_t merged, UniqueKeys& once,
                             std::vector<float>& sums) {
  if (gradients.size() == 1 && !may_repeat()) {
    auto const of_one = sums_of(*gradients.front(), merged);
    sums.assign(of_one.begin(), of_one.end());
    return gradients.front()->lookup->found().keys();
  }
  std::vector<std::uint64_t> ids;
  std::vector<std::uint32_t> tables;
  std::vector<float> values;
  for (auto* const gradient : gradients) {
    append(ids, tables, gradient->lookup->found().keys());
    auto const more = sums_of(*gradient, merged);
    values.insert(values.end(), more.begin(), more.end());
  }
  once = deduplicator_->deduplicate({.ids = ids, .tables = tables});
  sums.resize(once.size() * widths_[merged]);
  deduplicator_->reduce(once, {}, values, sums);
  return once.keys();
}

void ShardedTable::apply_gradients(std::uint64_t number, StepRates const& rates, float divisor) {
  base::expects(number > 0, "apply_gradients: steps count from 1");
  base::expects(std::isfinite(divisor) && divisor != 0, "apply_gradients: the divisor is 0 or not finite");
  for (auto const& [table, merged] : merged_of_) {
    base::expects(std::isfinite(rates.of(table)),
                  "apply_gradients: the rate of table " + std::to_string(table) + " is not finite");
  }
  struct DropAtEnd {  // Also after an exception: a second call must not apply a gradient twice.
    std::vector<std::unique_ptr<Gradients>>& pending;
    ~DropAtEnd() { pending.clear(); }
  } const drop_at_end{pending_};
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    if (auto const gradients = pending(merged); !gradients.empty()) update(merged, gradients, number, rates, divisor);
  }
}

void ShardedTable::drop_gradients() { pending_.clear(); }

void ShardedTable::scale_gradients(float factor) {
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    for (auto* const gradient : pending(merged)) {
      static_cast<void>(sums_of(*gradient, merged));
      for (float& value : *gradient->sums) value *= factor;
    }
  }
}

double ShardedTable::gradient_norm() {
  ExchangeScope scope(is_broken_);
  double squares = 0;
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    auto const gradients = pending(merged);
    if (gradients.empty()) continue;
    UniqueKeys once;
    std::vector<float> sums;
    static_cast<void>(once_each(gradients, merged, once, sums));
    for (float const value : sums) squares += static_cast<double>(value) * value;
  }
  auto const num_ranks = static_cast<std::size_t>(exchanger_->size());
  std::vector<std::size_t> const one(num_ranks, 1);
  RankBlocks<double> own(one), all(one);
  for (std::size_t rank = 0; rank < num_ranks; ++rank) own[rank][0] = squares;
  start_exchange(*exchanger_, own, all)->wait();
  double total = 0;
  for (std::size_t rank = 0; rank < num_ranks; ++rank) total += all[rank][0];
  scope.succeed();
  return std::sqrt(total);
}

void ShardedTable::update(std::size_t merged, std::span<TableGradient* const> gradients, std::uint64_t number,
                          StepRates const& rates, float divisor) {
  Table& table = *tables_[merged];
  auto const& numbers = merged_[merged].tables;
  double const rate = rates.of(numbers.front());
  bool const has_one_rate = std::ranges::all_of(numbers, [&](auto each) { return rates.of(each) == rate; });
  auto& first = *gradients.front();
  auto const& lookup = *first.lookup;
  if (gradients.size() == 1 && !may_repeat() && has_one_rate && !first.sums) {
    std::vector<RowId> present;
    auto rows = present_rows(lookup, merged, present);
    if (present.empty() && std::ranges::find(rows, RowId::kNone) != rows.end()) {
      present.resize(rows.size());  // A key may have got a row since, by another batch.
      table.find(lookup.found().keys(), present, {});
      rows = present;
    }
    Bags bags = lookup.in_rows ? lookup.inputs.bags() : Bags{};
    std::vector<float> weights;
    if (divisor != 1) {
      weights.assign(lookup.found().inverse_indices.size(), 1 / divisor);
      for (std::size_t i = 0; i < bags.weights.size(); ++i) weights[i] *= bags.weights[i];
      bags.weights = weights;
    }
    return table.update_bags(lookup.found().keys(), rows, lookup.found().csr(), bags,
                             lookup.in_rows ? first.bag_gradients : std::span<float const>(first.values),
                             {.learning_rate = rate, .number = number});
  }
  UniqueKeys once;
  std::vector<float> sums;
  Keys const keys = once_each(gradients, merged, once, sums);
  divide(sums, divisor);
  std::vector<RowId> rows(keys.size());
  table.find(keys, rows, {});
  if (has_one_rate) return table.update(keys, rows, sums, {.learning_rate = rate, .number = number});
  update_by_table(merged, keys, rows, sums, number, rates);
}

// Tables of one merged table learn at different rates: one update for each, of its own keys.
void ShardedTable::update_by_table(std::size_t merged, Keys const& keys, std::span<RowId const> rows,
                                   std::span<float const> gradients, std::uint64_t number, StepRates const& rates) {
  std::size_t const dim = widths_[merged];
  for (auto const table : merged_[merged].tables) {
    std::vector<std::uint64_t> ids;
    std::vector<RowId> rows_of_table;
    std::vector<float> values;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (keys[i].table != table) continue;
      ids.push_back(keys[i].id);
      rows_of_table.push_back(rows[i]);
      auto const own = gradients.subspan(i * dim, dim);
      values.insert(values.end(), own.begin(), own.end());
    }
    if (ids.empty()) continue;
    tables_[merged]->update({.ids = ids, .table = table}, rows_of_table, values,
                            {.learning_rate = rates.of(table), .number = number});
  }
}

}  // namespace headway::embedding
