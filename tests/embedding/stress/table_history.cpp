// SPDX-License-Identifier: Apache-2.0

// Random histories of a table, compared with an oracle after each operation; table_history.hpp has the idea.
//
// Drawn rates, betas and gradients are powers of two, and drawn embeddings and states are small integers. So products
// are exact, with and without fused multiply-adds, and results can be compared bit by bit. The draws are skewed on
// purpose: a few ids come again and again, batches repeat keys, and the ids 0 and 2^64 - 1 are among them.

#include "table_history.hpp"

#include "headway/embedding/routing.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <utility>
#include <vector>

namespace headway::embedding {

namespace {

[[noreturn]] void differ(std::string const& what, std::string const& actual, std::string const& expected) {
  throw Difference(what + ": " + actual + " instead of " + expected);
}

template <class Number>
std::string text_of(Number value) {
  return std::to_string(value);
}
std::string text_of(KeyStatus status) { return "status " + std::to_string(static_cast<int>(status)); }

template <class T>
void expect_same(std::string const& what, T const& actual, T const& expected) {
  if (actual != expected) differ(what, text_of(actual), text_of(expected));
}

template <class T>
void expect_same(std::string const& what, std::vector<T> const& actual, std::vector<T> const& expected) {
  expect_same(what + ", size", actual.size(), expected.size());
  auto const at = std::ranges::mismatch(actual, expected).in1;
  if (at == actual.end()) return;
  auto const i = static_cast<std::size_t>(at - actual.begin());
  differ(what + ", number " + std::to_string(i), text_of(actual[i]), text_of(expected[i]));
}

std::vector<std::uint64_t> fields_of(TableStatistics const& of) {
  return {of.inserted,  of.erased,   of.evicted, of.expired,          of.refused,
          of.forgotten, of.promoted, of.demoted, of.dropped_gradients};
}

template <class T>
void keep_indices(std::vector<T>& values, std::vector<std::size_t> const& indices) {
  std::vector<T> kept;
  for (std::size_t const index : indices) kept.push_back(values[index]);
  values = std::move(kept);
}

/// Removes keys that repeat an earlier one.
void keep_different_keys(Batch& batch) {
  std::set<Id> ids;
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < batch.ids.size(); ++i) {
    if (ids.insert(batch.id(i)).second) indices.push_back(i);
  }
  keep_indices(batch.ids, indices);
  keep_indices(batch.tables, indices);
  if (!batch.counts.empty()) keep_indices(batch.counts, indices);
}

}  // namespace

TableHistory::TableHistory(std::uint64_t seed, int most_threads)
    : random_(seed), most_threads_(most_threads), plan_(draw_plan()), table_(make_table()), oracle_(plan_.options) {}

void TableHistory::play() {
  while (num_operations_ < plan_.num_operations) {
    play_one();
    ++num_operations_;
    compare_sizes();
    if (one_in(24) || num_operations_ == plan_.num_operations) compare_contents();
  }
}

std::string TableHistory::describe() const {
  auto const& options = plan_.options;
  auto const limit_text = [](std::size_t limit) {
    return limit == TableOptions::kUnlimited ? std::string("any") : std::to_string(limit);
  };
  return "operation " + std::to_string(num_operations_) + " (" + operation_ + "), " + std::to_string(plan_.num_ids) +
         " ids of " + std::to_string(plan_.num_tables) + " tables, batches of up to " +
         std::to_string(plan_.most_keys) + ", dim " + std::to_string(options.dim) + ", optimizer " +
         std::to_string(static_cast<int>(options.optimizer.kind)) + ", max_rows " + limit_text(options.max_rows) +
         ", eviction " + std::to_string(static_cast<int>(options.eviction)) + ", high_water " +
         limit_text(options.high_water) + ", low_water " + limit_text(options.low_water) + ", eviction_batch " +
         limit_text(options.eviction_batch) + ", time_to_live " + std::to_string(options.time_to_live) +
         ", min_count " + std::to_string(options.min_count) + ", max_pending " + limit_text(options.max_pending) +
         ", hot_count " + std::to_string(options.hot_count);
}

// Random draws

TableHistory::Plan TableHistory::draw_plan() {
  Plan plan{.num_ids = one_of<std::uint64_t>({20, 20, 300, 300, 300, 4'000, 4'000, 30'000}),
            .num_tables = one_of<std::uint32_t>({1, 3}),
            .first_table = one_of<std::uint32_t>({0, 7, std::numeric_limits<std::uint32_t>::max() - 2}),
            .num_operations = 50 + below(150)};
  plan.most_keys = std::min<std::size_t>(one_of<std::size_t>({8, 100, 1'000, 6'000}), 4 * plan.num_ids) + 1;
  std::size_t const num_keys = plan.num_ids * plan.num_tables;
  auto& options = plan.options;
  options.dim = one_of<std::size_t>({1, 2, 3, 4, 5, 8, 16, 33});
  options.initializer = one_in(4) ? Initializer::constant(0.5F) : Initializer::uniform(-1, 1, random_());
  if (!one_in(3)) options.max_rows = 1 + below(num_keys);
  options.eviction =
      one_of({EvictionPolicy::kNone, EvictionPolicy::kLeastRecentlyUsed, EvictionPolicy::kLeastFrequentlyUsed});
  if (one_in(2)) options.high_water = 1 + below(num_keys);
  if (one_in(2)) options.low_water = below(num_keys);
  if (one_in(2)) options.eviction_batch = below(one_of<std::size_t>({2, 100, 5'000}));
  if (one_in(3)) options.time_to_live = static_cast<std::uint32_t>(1 + below(30));
  options.min_count = one_of<std::uint32_t>({1, 1, 2, 3, 5});
  if (one_in(2)) options.max_pending = below(num_keys);
  options.hot_count = one_of<std::uint32_t>({0, 0, 2, 4, 9});
  draw_optimizer(plan);
  return plan;
}

void TableHistory::draw_optimizer(Plan& plan) {
  using Kind = kernels::OptimizerKind;
  auto& optimizer = plan.options.optimizer;
  auto const kind = optimizer.kind =
      one_of({Kind::kSgd, Kind::kAdagrad, Kind::kRowWiseAdagrad, Kind::kAdam, Kind::kRowWiseAdam});
  bool const accumulates = kind == Kind::kAdagrad || kind == Kind::kRowWiseAdagrad;
  // Powers of two make products exact. Adam has epsilon 0: it would be added to an inexact product.
  plan.learning_rate = one_of({0.5, 0.125, -0.25});
  optimizer.epsilon = accumulates ? one_of({0.0, 0.125}) : 0;
  optimizer.initial_accumulator = accumulates ? one_of({0.0, 4.0}) : 0;
  optimizer.beta1 = kind == Kind::kRowWiseAdam ? 0 : 0.5;
  optimizer.beta2 = 0.5;
  if (kind == Kind::kSgd && one_in(3)) optimizer.weight_decay = 0.5;
  if (one_in(3)) {
    optimizer.decay = kernels::WeightDecay::kDecoupled;
    // The factor 1 - learning_rate * weight_decay is 1/2, or 1.
    optimizer.weight_decay = plan.learning_rate > 0 ? 0.5 / plan.learning_rate : 0;
  }
}

std::unique_ptr<Table> TableHistory::make_table() {
#if HEADWAY_TEST_CUDA_TABLES
  return Maker{"cuda", 0}.make(plan_.options);
#else
  return Maker{"cpu", static_cast<int>(1 + below(static_cast<std::uint64_t>(most_threads_)))}.make(plan_.options);
#endif
}

std::uint32_t TableHistory::draw_count() {
  if (one_in(500)) return one_of<std::uint32_t>({0x3fffffff, 0xfffffffe, 0xffffffff});
  return one_in(20) ? 0 : static_cast<std::uint32_t>(1 + below(3));
}

Batch TableHistory::draw_batch() {
  Batch batch{.dim = plan_.options.dim};
  std::size_t const size = below(plan_.most_keys);
  // Skewed draws: some ids are more frequent than others, and in a quarter of the batches all come from a few.
  std::uint64_t const num_ids = one_in(4) ? 1 + below(plan_.num_ids) : plan_.num_ids;
  bool const has_counts = one_in(2);
  for (std::size_t i = 0; i < size; ++i) {
    std::uint64_t const number = one_in(2) ? below(num_ids) : below(1 + below(num_ids));
    // Ids use all 64 bits; 0 and the highest are among them.
    batch.ids.push_back(number == 1 ? std::numeric_limits<std::uint64_t>::max() : number * 0x1000100010001);
    batch.tables.push_back(plan_.first_table + static_cast<std::uint32_t>(below(plan_.num_tables)));
    if (has_counts) batch.counts.push_back(draw_count());
  }
  batch.make_room();
  return batch;
}

Batch TableHistory::draw_different_keys() {
  auto batch = draw_batch();
  keep_different_keys(batch);
  batch.make_room();
  return batch;
}

Vector TableHistory::draw_values(std::size_t size, int least, int end) {
  Vector values(size);
  auto const range = static_cast<std::uint64_t>(end - least);
  for (float& value : values) value = static_cast<float>(least + static_cast<int>(below(range)));
  return values;
}

Vector TableHistory::draw_gradients(std::size_t size) {
  constexpr std::array kGradients{-4.0F, -2.0F, -1.0F, 1.0F, 2.0F, 4.0F};
  Vector gradients(size);
  for (float& gradient : gradients) gradient = kGradients[below(kGradients.size())];
  return gradients;
}

Keys TableHistory::keys_of(Batch const& batch) const {
  auto keys = batch.keys();
  if (plan_.num_tables == 1) {
    keys.tables = {};
    keys.table = plan_.first_table;
  }
  return keys;
}

// Operations

void TableHistory::play_one() {
  struct Choice {
    char const* name;
    void (TableHistory::*play)();
    std::uint64_t weight;
  };
  static constexpr std::array<Choice, 13> kChoices{{
      {"begin_step", &TableHistory::begin_step, 40},
      {"find", &TableHistory::find, 16},
      {"find_or_insert", &TableHistory::find_or_insert, 60},
      {"insert_or_assign", &TableHistory::insert_or_assign, 16},
      {"update", &TableHistory::update, 30},
      {"erase", &TableHistory::erase, 10},
      {"evict", &TableHistory::evict, 6},
      {"halve_counts", &TableHistory::halve_counts, 5},
      {"import_records", &TableHistory::import_records, 6},
      {"import_pending", &TableHistory::import_pending, 3},
      {"evict_beyond_limit", &TableHistory::evict_beyond_limit, 2},
      {"move in parts", &TableHistory::move_in_parts, 6},
      {"clear", &TableHistory::clear, 1},
  }};
  std::uint64_t total = 0;
  for (auto const& choice : kChoices) total += choice.weight;
  std::uint64_t draw = below(total);
  auto const* choice = kChoices.data();
  for (; draw >= choice->weight; ++choice) draw -= choice->weight;
  operation_ = choice->name;
  (this->*choice->play)();
}

void TableHistory::begin_step() {
  step_ += static_cast<std::uint32_t>(one_in(20) ? below(50) : below(3));
  oldest_in_use_ = step_ - static_cast<std::uint32_t>(below(std::min(step_ + 1, one_in(2) ? 1U : 4U)));
  table_->begin_step(step_, oldest_in_use_);
  oracle_.begin_step(step_, oldest_in_use_);
}

void TableHistory::find() {
  auto batch = draw_batch();
  auto const keys = keys_of(batch);
  table_->find(keys, batch.rows, batch.statuses);
  expect_same("statuses", batch.statuses, oracle_.find(keys));
  compare_rows_and_embeddings(batch, keys);
}

void TableHistory::find_or_insert() {
  bool const are_different = one_in(2);
  auto batch = are_different ? draw_different_keys() : draw_batch();
  auto keys = keys_of(batch);
  keys.are_unique = are_different;
  table_->find_or_insert(keys, batch.rows, batch.statuses);
  expect_same("statuses", batch.statuses, oracle_.find_or_insert(keys));
  compare_rows_and_embeddings(batch, keys);
}

void TableHistory::insert_or_assign() {
  bool const are_different = one_in(2);
  auto batch = are_different ? draw_different_keys() : draw_batch();
  auto keys = keys_of(batch);
  keys.are_unique = are_different;
  auto const embeddings = draw_values(batch.embeddings.size(), -500, 500);
  table_->insert_or_assign(keys, embeddings, batch.statuses);
  expect_same("statuses", batch.statuses, oracle_.insert_or_assign(keys, embeddings));
  table_->find(keys, batch.rows, batch.statuses);
  compare_rows_and_embeddings(batch, keys);
}

void TableHistory::update() {
  auto batch = draw_different_keys();
  auto keys = keys_of(batch);
  keys.are_unique = true;
  if (one_in(2)) {
    table_->find(keys, batch.rows, batch.statuses);
    expect_same("statuses", batch.statuses, oracle_.find(keys));
  } else {
    table_->find_or_insert(keys, batch.rows, batch.statuses);
    expect_same("statuses", batch.statuses, oracle_.find_or_insert(keys));
  }
  auto const gradients = draw_gradients(batch.embeddings.size());
  kernels::OptimizerStep const step{.learning_rate = plan_.learning_rate, .number = ++num_updates_};
  table_->update(keys, batch.rows, gradients, step);
  oracle_.update(keys, gradients, step);
  compare_rows_and_embeddings(batch, keys);
}

void TableHistory::erase() {
  auto const batch = draw_batch();
  table_->erase(keys_of(batch));
  oracle_.erase(keys_of(batch));
}

void TableHistory::evict() {
  if (plan_.options.eviction == EvictionPolicy::kNone) return;
  std::size_t const num_rows = below(oracle_.rows.size() + 2);
  expect_same("evicted", table_->evict(num_rows), oracle_.evict(num_rows));
}

void TableHistory::halve_counts() {
  table_->halve_counts();
  oracle_.halve_counts();
}

void TableHistory::clear() {
  table_->clear();
  oracle_.clear();
}

void TableHistory::import_records() {
  auto batch = draw_batch();
  std::size_t const num_keys = batch.ids.size();
  Records records;
  records.ids = batch.ids;
  records.tables = batch.tables;
  records.embeddings = draw_values(batch.embeddings.size(), -500, 500);
  records.states = draw_values(num_keys * oracle_.state_size(), 1, 10);
  for (std::size_t i = 0; i < num_keys; ++i) {
    records.counts.push_back(draw_count());
    records.steps.push_back(static_cast<std::uint32_t>(below(step_ + 3)));
  }
  table_->import_records(records, batch.statuses);
  expect_same("statuses", batch.statuses, oracle_.import_records(records));
}

void TableHistory::import_pending() {
  auto const batch = draw_batch();
  Records records;
  records.ids = batch.ids;
  records.tables = batch.tables;
  for (std::size_t i = 0; i < batch.ids.size(); ++i) records.counts.push_back(draw_count());
  table_->import_pending(records);
  oracle_.import_pending(records);
}

void TableHistory::evict_beyond_limit() {
  expect_same("evicted beyond the limit", table_->evict_beyond_limit(), oracle_.evict_beyond_limit());
}

void TableHistory::move_in_parts() {
  auto copy = make_table();
  Oracle oracle(plan_.options);
  copy->resume_step(step_, oldest_in_use_);
  oracle.resume_step(step_, oldest_in_use_);
  auto const num_parts = static_cast<std::uint32_t>(1 + below(8));
  for (std::uint32_t part = 0; part < num_parts; ++part) {
    std::uint32_t const first = first_bucket_of(part, num_parts), end = first_bucket_of(part + 1, num_parts);
    auto const records = compare_records(first, end);
    std::vector<KeyStatus> statuses(records.ids.size());
    copy->import_records(records, statuses);
    expect_same("statuses of a part", statuses, oracle.import_records(records));
    compare_pending(first, end);
    auto const waiting = table_->list_pending(first, end);
    copy->import_pending(waiting);
    oracle.import_pending(waiting);
  }
  expect_same("rows after a restart", oracle.rows.size(), oracle_.rows.size());
  for (auto const& [id, row] : oracle.rows) {
    expect_same("lookups after a restart", row.count, oracle_.rows.at(id).count);
    expect_same("step after a restart", row.step, oracle_.rows.at(id).step);
  }
  if (oracle.pending != oracle_.pending) throw Difference("other keys wait after a restart");
  table_ = std::move(copy);
  oracle_ = std::move(oracle);
  forget_rows();
}

// Comparisons

void TableHistory::compare_sizes() const {
  auto const size = table_->size();
  expect_same("rows", size.rows, oracle_.rows.size());
  expect_same("cold rows", size.cold_rows, oracle_.num_cold_rows());
  expect_same("pending keys", size.pending, oracle_.pending.size());
  expect_same("statistics", fields_of(table_->statistics()), fields_of(oracle_.statistics));
}

void TableHistory::compare_contents() const {
  // Two ranges of virtual buckets that meet anywhere.
  auto const middle = static_cast<std::uint32_t>(plan_.num_ids * 997 % (kNumVirtualBuckets + 1));
  for (auto const& [first, end] : {std::pair{0U, middle}, {middle, kNumVirtualBuckets}}) {
    static_cast<void>(compare_records(first, end));
    compare_pending(first, end);
  }
}

void TableHistory::compare_pending(std::uint32_t first_bucket, std::uint32_t end_bucket) const {
  auto const actual = table_->list_pending(first_bucket, end_bucket);
  auto const expected = oracle_.pending_records(first_bucket, end_bucket);
  expect_same("ids that wait", actual.ids, expected.ids);
  expect_same("tables of what waits", actual.tables, expected.tables);
  expect_same("counts of what waits", actual.counts, expected.counts);
}

Records TableHistory::compare_records(std::uint32_t first_bucket, std::uint32_t end_bucket) const {
  auto const listed = table_->list(first_bucket, end_bucket);
  auto actual = table_->export_records(listed.keys());
  auto const expected = oracle_.records(first_bucket, end_bucket);
  expect_same("ids", actual.ids, expected.ids);
  expect_same("tables", actual.tables, expected.tables);
  expect_same("counts", actual.counts, expected.counts);
  expect_same("steps", actual.steps, expected.steps);
  expect_same("embeddings", actual.embeddings, expected.embeddings);
  expect_same("states", actual.states, expected.states);
  return actual;
}

void TableHistory::compare_rows_and_embeddings(Batch const& batch, Keys const& keys) {
  if (table_->generation() != generation_) forget_rows();
  generation_ = table_->generation();
  Vector embeddings(batch.embeddings.size()), expected;
  table_->gather(keys, batch.rows, embeddings);
  for (std::size_t i = 0; i < batch.ids.size(); ++i) {
    Id const id = batch.id(i);
    RowId const row = batch.rows[i];
    bool const has_row = batch.statuses[i] == KeyStatus::kFound || batch.statuses[i] == KeyStatus::kInserted;
    if (has_row != (row != RowId::kNone)) throw Difference("rows and statuses do not agree");
    auto const embedding = has_row ? oracle_.rows.at(id).embedding : oracle_.initial_embedding_of(id);
    expected.insert(expected.end(), embedding.begin(), embedding.end());
    if (!has_row) continue;
    if (rows_.try_emplace(id, row).first->second != row) throw Difference("a row moved within a generation");
    if (owners_.try_emplace(row, id).first->second != id) throw Difference("two keys have one row");
  }
  expect_same("embeddings", embeddings, expected);
}

void TableHistory::forget_rows() {
  rows_.clear();
  owners_.clear();
}

}  // namespace headway::embedding
