// SPDX-License-Identifier: Apache-2.0

// Oracle of tables: the rules of Table in the simplest form, for conformance and stress tests.
//
// Idea: rows and pending keys are two std::maps from (table, id). Each operation of Table is written down once more,
// serially and without batching, stripes, queues or precision tricks: eviction sorts all rows, a cold row is float32
// rounded to bfloat16. Tests play the same operations on a table and on the oracle and compare statuses, statistics and
// records bit by bit.
//
// Example: max_rows 2, no policy, batch (a, b, c): a and b get rows, c is refused. The table under test must report
//   kInserted, kInserted, kNoRoom, and `refused` must be 1.
//
// Invariants: it shares with tables only parts that have tests of their own: hash, initial values, rounding, the order
//   of forgotten keys, and the map from keys to stripes (64 parts of a table, of which each step sweeps one).
//   Floating-point results are equal to the bit only if products are exact, so stress tests draw powers of two.
// Complexity: O(n log n) for a batch, eviction O(rows log rows).

#pragma once

#include "headway/embedding/bfloat16.hpp"
#include "headway/embedding/routing.hpp"
#include "stripe_map.hpp"
#include "table_fixture.hpp"
#include "table_options.hpp"
#include "table_rows_format.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace headway::embedding {

/// Reference implementation of the rules of Table.
class Oracle {
 public:
  /// A row: embedding (bfloat16 values if cold) and optimizer state in the layout of Records::states.
  struct Row {
    Vector embedding{}, state{};
    std::uint32_t count = 0, step = 0;
    bool is_cold = false;
  };

  explicit Oracle(TableOptions const& options) : options_(options) {
    options_.high_water = std::min(options.high_water, options.max_rows);
    options_.low_water = std::min(options.low_water, options_.high_water);
  }

  void begin_step(std::uint32_t step, std::uint32_t oldest_in_use) {
    std::uint32_t const before = step_;
    resume_step(step, oldest_in_use);
    if (options_.time_to_live > 0) sweep_expired(before);
    if (options_.eviction != EvictionPolicy::kNone && rows.size() > options_.high_water) {
      evict(left_by_batch(options_.high_water, options_.low_water));
    }
    if (pending.size() > options_.max_pending) forget_pending(options_.max_pending - options_.max_pending / 4);
  }

  void resume_step(std::uint32_t step, std::uint32_t oldest_in_use) {
    step_ = step;
    oldest_in_use_ = oldest_in_use;
  }

  [[nodiscard]] std::vector<KeyStatus> find(Keys const& keys) const {
    std::vector<KeyStatus> statuses;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      auto const row = rows.find(id_of(keys[i]));
      bool const is_there = row != rows.end() && !is_expired(row->second);
      statuses.push_back(is_there ? KeyStatus::kFound : KeyStatus::kAbsent);
    }
    return statuses;
  }

  std::vector<KeyStatus> find_or_insert(Keys const& keys) {
    auto const counts = keys.counts.empty() ? std::vector<std::uint32_t>(keys.size(), 1) : copy_of(keys.counts);
    return insert(keys, counts, {.min_count = options_.min_count, .max_rows = options_.max_rows}, [](auto...) {});
  }

  std::vector<KeyStatus> insert_or_assign(Keys const& keys, std::span<float const> embeddings) {
    return insert(keys, std::vector<std::uint32_t>(keys.size(), 0), {.max_rows = options_.max_rows},
                  [&](std::size_t i, Row& row) { write(row, embeddings.subspan(i * options_.dim, options_.dim)); });
  }

  std::vector<KeyStatus> import_records(Records const& records) {
    std::size_t const width = state_size();
    auto const keys = records.keys();
    std::map<Id, std::size_t> last_of;
    for (std::size_t i = 0; i < keys.size(); ++i) last_of[id_of(keys[i])] = i;
    std::vector<KeyStatus> statuses(keys.size(), KeyStatus::kFound);
    std::set<Id> seen, refused;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      Id const id = id_of(keys[i]);
      if (!seen.insert(id).second) continue;
      std::size_t const last = last_of[id];
      statuses[i] = look_up_or_insert(id, records.counts[last], {}, refused);
      auto& row = rows.at(id);
      write(row, std::span(records.embeddings).subspan(last * options_.dim, options_.dim));
      row.state = copy_of(std::span(records.states).subspan(last * width, width));
      row.count = records.counts[last];
      row.step = records.steps[last];
    }
    return statuses;
  }

  void import_pending(Records const& records) {
    auto const keys = records.keys();
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (!rows.contains(id_of(keys[i]))) pending[id_of(keys[i])] = std::min(records.counts[i], kMostPendingCount);
    }
  }

  /// Evicts down to max_rows, even rows in use. Without a policy the least frequently used rows go.
  std::size_t evict_beyond_limit() {
    auto const policy =
        options_.eviction == EvictionPolicy::kNone ? EvictionPolicy::kLeastFrequentlyUsed : options_.eviction;
    return evict(options_.max_rows, policy, std::numeric_limits<std::uint32_t>::max());
  }

  void erase(Keys const& keys) {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      pending.erase(id_of(keys[i]));
      statistics.erased += rows.erase(id_of(keys[i]));
    }
  }

  /// One optimizer step. @param keys without duplicates
  void update(Keys const& keys, std::span<float const> gradients, kernels::OptimizerStep const& step) {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      auto const at = rows.find(id_of(keys[i]));
      if (at == rows.end() || is_expired(at->second)) {
        ++statistics.dropped_gradients;
        continue;
      }
      auto& row = at->second;
      apply_gradient(row, copy_of(gradients.subspan(i * options_.dim, options_.dim)), step);
      if (row.is_cold) round_at_random(at->first, row.embedding, step.number);
    }
  }

  std::size_t evict(std::size_t num_rows) { return evict(num_rows, options_.eviction, oldest_in_use_); }

  std::size_t evict(std::size_t num_rows, EvictionPolicy policy, std::uint32_t oldest_in_use) {
    using Score = std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>;
    std::vector<std::pair<Score, Id>> scores;
    for (auto const& [id, row] : rows) {
      if (row.step >= oldest_in_use) continue;
      auto const hash = hash_of(key_of(id)).low;
      auto const [first, second] = policy == EvictionPolicy::kLeastRecentlyUsed ? std::pair(row.step, row.count)
                                                                                : std::pair(row.count, row.step);
      // Under LRU, expired rows have the lowest steps anyway.
      bool const goes_first = policy != EvictionPolicy::kLeastRecentlyUsed && is_expired(row);
      scores.emplace_back(goes_first ? Score(0, 0, hash) : Score(first, second, hash), id);
    }
    std::ranges::sort(scores);
    std::size_t const before = rows.size();
    for (auto const& [score, id] : scores) {
      if (rows.size() > num_rows) rows.erase(id);
    }
    statistics.evicted += before - rows.size();
    return before - rows.size();
  }

  void halve_counts() {
    for (auto& [id, count] : pending) count /= 2;
    for (auto& [id, row] : rows) {
      row.count /= 2;
      if (row.is_cold || row.count >= options_.hot_count || is_in_use(row)) continue;
      row.is_cold = true;
      round_at_random(id, row.embedding, step_);
      ++statistics.demoted;
    }
  }

  void clear() {
    statistics.erased += rows.size();
    statistics.forgotten += pending.size();
    rows.clear();
    pending.clear();
  }

  [[nodiscard]] Vector initial_embedding_of(Id id) const {
    Vector embedding(options_.dim);
    options_.initializer.fill(key_of(id), embedding);
    return embedding;
  }

  /// Expected export_records() of list() for a range of buckets.
  [[nodiscard]] Records records(std::uint32_t first_bucket, std::uint32_t end_bucket) const {
    Records records;
    for (Id const& id : in_order(rows, first_bucket, end_bucket)) {
      auto const& row = rows.at(id);
      add_key(records, id);
      records.counts.push_back(row.count);
      records.steps.push_back(row.step);
      records.embeddings.insert(records.embeddings.end(), row.embedding.begin(), row.embedding.end());
      records.states.insert(records.states.end(), row.state.begin(), row.state.end());
    }
    return records;
  }

  /// Expected list_pending() for a range of buckets.
  [[nodiscard]] Records pending_records(std::uint32_t first_bucket, std::uint32_t end_bucket) const {
    Records records;
    for (Id const& id : in_order(pending, first_bucket, end_bucket)) {
      add_key(records, id);
      records.counts.push_back(pending.at(id));
    }
    return records;
  }

  [[nodiscard]] std::size_t num_cold_rows() const {
    return static_cast<std::size_t>(std::ranges::count_if(rows, [](auto const& each) { return each.second.is_cold; }));
  }

  [[nodiscard]] std::size_t state_size() const {
    switch (options_.optimizer.kind) {
      case kernels::OptimizerKind::kAdagrad:
        return options_.dim;
      case kernels::OptimizerKind::kRowWiseAdagrad:
        return 1;
      case kernels::OptimizerKind::kAdam:
        return 2 * options_.dim;
      case kernels::OptimizerKind::kRowWiseAdam:
        return options_.dim + 1;
      case kernels::OptimizerKind::kSgd:
        break;
    }
    return 0;
  }

  std::map<Id, Row> rows;
  std::map<Id, std::uint32_t> pending;  ///< Lookups so far of keys that have no row yet.
  TableStatistics statistics;

 private:
  /// Conditions under which an inserted key gets a row.
  struct Admission {
    std::uint32_t min_count = 0;
    std::size_t max_rows = TableOptions::kUnlimited;
  };

  static Id id_of(Key key) { return {key.table, key.id}; }
  static Key key_of(Id id) { return {.id = id.second, .table = id.first}; }
  template <class T>
  static std::vector<T> copy_of(std::span<T const> values) {
    return {values.begin(), values.end()};
  }
  /// Saturating sum.
  static std::uint32_t added(std::uint32_t count, std::uint64_t more) {
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(count + more, std::numeric_limits<std::uint32_t>::max()));
  }
  static void add_key(Records& records, Id id) {
    records.tables.push_back(id.first);
    records.ids.push_back(id.second);
  }
  /// Keys of a range of buckets, sorted by (bucket, table, id).
  template <class Value>
  static std::vector<Id> in_order(std::map<Id, Value> const& of, std::uint32_t first_bucket, std::uint32_t end_bucket) {
    std::vector<std::pair<std::uint32_t, Id>> keys;
    for (auto const& [id, value] : of) {
      std::uint32_t const bucket = virtual_bucket_of(hash_of(key_of(id)));
      if (bucket >= first_bucket && bucket < end_bucket) keys.emplace_back(bucket, id);
    }
    std::ranges::sort(keys);
    std::vector<Id> ids;
    for (auto const& [bucket, id] : keys) ids.push_back(id);
    return ids;
  }

  [[nodiscard]] bool is_in_use(Row const& row) const { return row.step >= oldest_in_use_; }
  [[nodiscard]] bool is_expired(Row const& row) const {
    return options_.time_to_live > 0 && !is_in_use(row) && step_ - row.step > options_.time_to_live;
  }
  /// Removes expired rows of a batch's keys: a lookup finds such a key absent.
  void remove_expired(Keys const& keys) {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      auto const row = rows.find(id_of(keys[i]));
      if (row == rows.end() || !is_expired(row->second)) continue;
      rows.erase(row);
      ++statistics.expired;
    }
  }

  /// Inserts absent keys, and calls `visit(i, row)` for each key that has a row afterwards.
  template <class Visit>
  std::vector<KeyStatus> insert(Keys const& keys, std::vector<std::uint32_t> const& counts, Admission const& admission,
                                Visit visit) {
    remove_expired(keys);
    bool const may_evict = options_.eviction != EvictionPolicy::kNone && admission.max_rows != TableOptions::kUnlimited;
    if (may_evict) make_room(keys, counts, admission);
    std::vector<KeyStatus> statuses;
    std::set<Id> refused;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      Id const id = id_of(keys[i]);
      statuses.push_back(look_up_or_insert(id, counts[i], admission, refused));
      if (auto const row = rows.find(id); row != rows.end()) visit(i, row->second);
    }
    return statuses;
  }

  KeyStatus look_up_or_insert(Id id, std::uint32_t count, Admission const& admission, std::set<Id>& refused) {
    if (auto const row = rows.find(id); row != rows.end()) {
      look_up(row->second, count);
      return KeyStatus::kFound;
    }
    auto const waiting = pending.find(id);
    std::uint32_t const total = added(count, waiting == pending.end() ? 0 : waiting->second);
    if (!refused.contains(id) && total < admission.min_count) {
      pending[id] = total;
      return KeyStatus::kPending;
    }
    if (refused.contains(id) || rows.size() >= admission.max_rows) {
      refused.insert(id);
      ++statistics.refused;
      // A refused key is not remembered as pending, unless it already was.
      if (waiting != pending.end()) waiting->second = std::min(total, kMostPendingCount);
      return KeyStatus::kNoRoom;
    }
    pending.erase(id);
    auto& row = rows[id] = {.state = Vector(state_size(), static_cast<float>(options_.optimizer.initial_accumulator)),
                            .count = total,
                            .step = step_,
                            .is_cold = total < options_.hot_count};
    write(row, initial_embedding_of(id));
    ++statistics.inserted;
    return KeyStatus::kInserted;
  }

  void look_up(Row& row, std::uint32_t count) {
    bool const is_first_of_step = row.step != step_;
    row.count = added(row.count, count);
    row.step = step_;
    if (!row.is_cold || !is_first_of_step || row.count < options_.hot_count) return;
    row.is_cold = false;
    ++statistics.promoted;
  }

  /// Evicts rows if the batch asks for more than are free. Rows of the batch are marked as in use first.
  void make_room(Keys const& keys, std::vector<std::uint32_t> const& counts, Admission const& admission) {
    std::map<Id, std::uint64_t> totals;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (!rows.contains(id_of(keys[i]))) totals[id_of(keys[i])] += counts[i];
    }
    std::size_t wanted = 0;
    for (auto const& [id, total] : totals) {
      if (total + (pending.contains(id) ? pending[id] : 0) >= admission.min_count) ++wanted;
    }
    if (wanted <= options_.max_rows - std::min(options_.max_rows, rows.size())) return;  // Imports may exceed max_rows.
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (auto const row = rows.find(id_of(keys[i])); row != rows.end()) row->second.step = step_;
    }
    std::size_t const allowed = options_.max_rows - std::min(options_.max_rows, wanted);
    evict(left_by_batch(allowed, std::min(options_.low_water, allowed)));
  }

  /// Rows left by an eviction: removes eviction_batch rows, or more until `allowed` are left, but stops at `low`.
  [[nodiscard]] std::size_t left_by_batch(std::size_t allowed, std::size_t low) const {
    std::size_t num_left = rows.size();
    for (std::size_t num_gone = 0; num_left > low && (num_gone < options_.eviction_batch || num_left > allowed);) {
      --num_left;
      ++num_gone;
    }
    return num_left;
  }

  /// Removes expired rows of one stripe for each step that passed. @param before the step until now
  void sweep_expired(std::uint32_t before) {
    std::set<std::size_t> stripes{step_ % StripeMap::kCount};
    for (std::uint32_t step = before + 1; step <= step_ && stripes.size() < StripeMap::kCount; ++step) {
      stripes.insert(step % StripeMap::kCount);
    }
    statistics.expired += std::erase_if(rows, [&](auto const& each) {
      auto const& [id, row] = each;
      return stripes.contains(stripe_map_.of(hash_of(key_of(id)))) && is_expired(row);
    });
  }

  /// Forgets the pending keys of fewest lookups until `num_left` are left.
  void forget_pending(std::size_t num_left) {
    std::vector<std::tuple<std::uint32_t, std::uint64_t, Id>> scores;
    for (auto const& [id, count] : pending)
      scores.emplace_back(count, hash_of(key_of(id)).low ^ pending_order(step_), id);
    std::ranges::sort(scores);
    for (auto const& [count, hash, id] : scores) {
      if (pending.size() <= num_left) break;
      pending.erase(id);
      ++statistics.forgotten;
    }
  }

  void write(Row& row, std::span<float const> values) const {
    row.embedding = copy_of(values);
    if (!row.is_cold) return;
    for (float& value : row.embedding) value = widen(round_to_nearest(value));
  }

  /// Rounds to bfloat16 stochastically, with bits that depend on key, column and step.
  static void round_at_random(Id id, Vector& embedding, std::uint64_t step) {
    for (std::uint32_t j = 0; j < embedding.size(); ++j) {
      auto const words = rounding_words(key_of(id), j / kColumnsPerRounding, step);
      embedding[j] = widen(round_stochastically(embedding[j], rounding_bits(words, j % kColumnsPerRounding)));
    }
  }

  /// One optimizer step by the formulas of torch.optim, and FBGEMM's for the row-wise optimizers.
  void apply_gradient(Row& row, Vector gradient, kernels::OptimizerStep const& step) const {
    using Kind = kernels::OptimizerKind;
    auto const& by = options_.optimizer;
    bool const is_decoupled = by.decay == kernels::WeightDecay::kDecoupled;
    auto const number = static_cast<double>(step.number);
    auto const rate = static_cast<float>(step.learning_rate), epsilon = static_cast<float>(by.epsilon);
    auto const moment_rate = static_cast<float>(step.learning_rate / (1 - std::pow(by.beta1, number)));
    auto const root_factor = static_cast<float>(1 / std::sqrt(1 - std::pow(by.beta2, number)));
    auto const rest1 = static_cast<float>(1 - by.beta1), rest2 = static_cast<float>(1 - by.beta2);
    auto const beta2 = static_cast<float>(by.beta2);
    auto const kept = static_cast<float>(is_decoupled ? 1 - step.learning_rate * by.weight_decay : 1);
    std::size_t const dim = options_.dim;
    float mean_of_squares = 0;
    for (std::size_t j = 0; j < dim; ++j) {
      if (!is_decoupled) gradient[j] += static_cast<float>(by.weight_decay) * row.embedding[j];
      mean_of_squares += gradient[j] * gradient[j];
    }
    mean_of_squares /= static_cast<float>(dim);
    if (by.kind == Kind::kRowWiseAdagrad) row.state.back() += mean_of_squares;
    if (by.kind == Kind::kRowWiseAdam) row.state.back() = beta2 * row.state.back() + rest2 * mean_of_squares;
    for (std::size_t j = 0; j < dim; ++j) {
      float change = 0;
      switch (by.kind) {
        case Kind::kSgd:
          change = rate * gradient[j];
          break;
        case Kind::kAdagrad:
          row.state[j] += gradient[j] * gradient[j];
          change = rate * gradient[j] / (std::sqrt(row.state[j]) + epsilon);
          break;
        case Kind::kRowWiseAdagrad:
          change = rate / (std::sqrt(row.state.back()) + epsilon) * gradient[j];
          break;
        case Kind::kAdam: {
          float& second = row.state[dim + j];
          row.state[j] += (gradient[j] - row.state[j]) * rest1;
          second = beta2 * second + rest2 * gradient[j] * gradient[j];
          change = moment_rate * row.state[j] / (std::sqrt(second) * root_factor + epsilon);
          break;
        }
        case Kind::kRowWiseAdam:
          row.state[j] += (gradient[j] - row.state[j]) * rest1;
          change = moment_rate / (std::sqrt(row.state.back()) * root_factor + epsilon) * row.state[j];
          break;
      }
      row.embedding[j] = row.embedding[j] * kept - change;
    }
  }

  TableOptions options_;
  StripeMap stripe_map_;
  std::uint32_t step_ = 0, oldest_in_use_ = 0;
};

}  // namespace headway::embedding
