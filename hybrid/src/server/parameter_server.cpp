// SPDX-License-Identifier: Apache-2.0

// A parameter server: rows of tables, and the rules by which they are read and trained.
//
// Idea: a lookup of step t inserts keys and reads their rows once all steps below t - staleness have been applied
// (StepLedger). The server keeps the keys until the part with their gradients comes, so gradients travel without keys.
// When all parts of the oldest step are there, it adds them in the order of workers and makes one optimizer step per
// row. Then it answers the lookups that waited. Without sums (StepLedger::Options) a part is applied when it comes, and
// the step is complete when its last one is. Workers may also count steps of their own (StepLedger::Options). Then a
// part is applied when it comes, and a lookup waits for parts of its own worker.
//
// Example: 2 workers, staleness 0, one table. Worker 0 looks up ids 5 and 6 in step 0, worker 1 looks up 5. They get
// rows, and send gradients g0, g1 and h0. The server updates row 5 by g0 + h0, and row 6 by g1. A lookup of step 1 that
// came meanwhile is answered now.
//
// Invariants:
//   A part or void notice counts once (StepLedger). What belongs to an older generation is refused.
//   Rows of a step that is not applied are not evicted: the step of a row is at least that of its last lookup, and
//   begin_step() protects rows from step num_applied on. If workers count steps of their own, a step of the tables is
//   one of each worker in the mean, and rows are protected from the oldest batch in flight on.
//   A key whose row is gone is skipped with its gradient, and the others keep theirs.
//   Rows are read and trained by calls of ConcurrentTable, so no reader sees half an update.
//   A request that throws has changed nothing. If an update throws, the server has failed and answers nothing more.
// Threads: each link has one, and their requests share `requests_`. They hold `mutex_` while they look at steps and
//   batches, not while they use tables. One of them at a time applies steps (advance()). A generation begins, and
//   tables are made, by a request that is alone.
// Complexity: O(K dim) for K keys of a request or a step. Memory: keys of the batches in the window, and parts that
// wait.

#include "headway/hybrid/parameter_server.hpp"

#include "headway/base/log.hpp"
#include "headway/embedding/batch_device.hpp"
#include "headway/embedding/description.hpp"
#include "server/server_meter.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <shared_mutex>
#include <span>
#include <utility>

namespace headway::hybrid {

namespace {

embedding::Keys view_of(KeyList const& keys) { return {.ids = keys.ids, .tables = keys.tables, .counts = keys.counts}; }

}  // namespace

struct ParameterServer::Batch {
  Body lookup{}, part{};  ///< Messages that keys and values are views of, unless they were compressed.
  DecodedLookup keys{};
  DecodedPart values{};  ///< No tables until the part has come.
  bool is_answered = false;
  bool is_applied = false;       ///< Its part is being applied alone, or was.
  std::uint32_t table_step = 0;  ///< Step of the tables before its lookup.
};

struct ParameterServer::Sums {
  embedding::UniqueBlocks keys{};
  embedding::Block<float> values{};  ///< (keys, dim); empty: no worker has gradients.
  double rate = 0;
};

ParameterServer::ParameterServer(ParameterServerOptions options)
    : options_(std::move(options)),
      device_(embedding::make_host_batch_device(options_.thread_pool)),
      meter_(std::make_unique<ServerMeter>()) {}
ParameterServer::~ParameterServer() = default;

void ParameterServer::handle(Request& request) {
  switch (static_cast<ServerRequest>(request.kind())) {
    case ServerRequest::kConfigure:
    case ServerRequest::kBeginGeneration:
    case ServerRequest::kSave:
    case ServerRequest::kLoad:
    case ServerRequest::kTakeLoaded:
    case ServerRequest::kRows:
    case ServerRequest::kStoreRows: {
      std::lock_guard const alone(requests_);
      if (!is_refused_as_failed(request)) handle_alone(request);
      return;
    }
    default: {
      std::shared_lock const together(requests_);
      if (!is_refused_as_failed(request)) handle_together(request);
    }
  }
}

void ParameterServer::handle_alone(Request& request) {
  auto const kind = static_cast<ServerRequest>(request.kind());
  if (kind == ServerRequest::kConfigure) return configure(request);
  if (kind == ServerRequest::kBeginGeneration) return begin_generation(request);
  if (kind == ServerRequest::kRows) return hand_out_rows(request);
  if (is_refused_as_old(request)) return;
  switch (kind) {
    case ServerRequest::kSave:
      return save(request);
    case ServerRequest::kLoad:
      return load(request);
    case ServerRequest::kStoreRows:
      return store_rows(request);
    default:
      return take_loaded(request);
  }
}

void ParameterServer::handle_together(Request& request) {
  auto const kind = static_cast<ServerRequest>(request.kind());
  if (kind == ServerRequest::kRead) return read(request);
  if (kind == ServerRequest::kStatus) return request.reply(encode_status(present_status()));
  bool const is_known = kind == ServerRequest::kLookup || kind == ServerRequest::kPart ||
                        kind == ServerRequest::kVoid || kind == ServerRequest::kEndAt;
  base::expects(is_known, "a parameter server has no requests of kind " + std::to_string(request.kind()));
  if (is_refused_as_old(request)) return;
  switch (kind) {
    case ServerRequest::kLookup:
      return look_up(request);
    case ServerRequest::kPart:
      return take_part(request);
    case ServerRequest::kVoid:
      return take_void(request);
    default: {
      std::unique_lock lock(mutex_);
      ledger_->end_at(decode_batch(request.body()).step);
      request.reply({});
      last_worker_.reset();
      return advance(lock);
    }
  }
}

bool ParameterServer::is_refused_as_old(Request& request) const {
  base::expects(!configuration_.empty(), "the server has no tables yet");
  base::expects(ledger_.has_value(), "no generation has begun");
  if (request.generation() == generation_) return false;
  base::expects(request.generation() < generation_, "generation " + std::to_string(request.generation()) +
                                                        " has not begun; this is " + std::to_string(generation_));
  request.refuse(ReplyCode::kOldGeneration, "generation " + std::to_string(request.generation()) +
                                                " has ended; this is " + std::to_string(generation_));
  return true;
}

bool ParameterServer::is_refused_as_failed(Request& request) const {
  std::lock_guard const lock(mutex_);
  if (failure_.empty()) return false;
  request.refuse(ReplyCode::kFailed, "the server has failed: " + failure_);
  return true;
}

void ParameterServer::configure(Request& request) {
  auto const [compression, body] = decode_configuration(request.body());
  auto merged = decode_tables(body);
  if (configuration_.empty()) {
    base::expects(!merged.empty(), "a server needs at least one table");
    std::vector<std::unique_ptr<embedding::ConcurrentTable>> tables;
    for (auto& each : merged) {
      each.options.thread_pool = options_.thread_pool;
      tables.push_back(embedding::make_concurrent_table(each.options));
    }
    for (auto const& each : merged) ids_of_tables_.emplace_back(each.tables.begin(), each.tables.end());
    for (auto const& each : merged) dims_.push_back(each.options.dim);
    merged_ = std::move(merged);
    row_indices_.resize(merged_.size());
    meter_->set_tables(merged_);
    tables_ = std::move(tables);
    compression_ = compression;
    configuration_.assign(body.begin(), body.end());
  } else if (!std::ranges::equal(body, configuration_)) {
    auto const here = embedding::describe(merged_, embedding::Dedup::kBoth);
    auto const there = embedding::describe(merged, embedding::Dedup::kBoth);
    throw base::UsageError(here == there ? "the server has tables with other limits of rows"
                                         : "the server has these tables: " + here + ". The request has: " + there);
  }
  base::expects(compression == compression_,
                "the server has " + to_string(compression_) + ", and the request has " + to_string(compression));
  request.reply({});
}

void ParameterServer::begin_generation(Request& request) {
  base::expects(!configuration_.empty(), "the server has no tables yet");
  auto const [options, token] = decode_generation(request.body());
  base::expects(request.generation() > 0, "generations count from 1");
  if (request.generation() < generation_) {
    return request.refuse(ReplyCode::kOldGeneration, "generation " + std::to_string(request.generation()) +
                                                         " has ended; this is " + std::to_string(generation_));
  }
  if (request.generation() == generation_) {
    auto const& present = ledger_->options();
    base::expects(present == options, "generation " + std::to_string(generation_) + " has begun with " +
                                          std::to_string(present.num_workers) + " dense workers, staleness " +
                                          std::to_string(present.staleness) + " and first step " +
                                          std::to_string(present.first_step));
    base::expects(token == token_, "generation " + std::to_string(generation_) +
                                       " was begun by another trainer at the same time: connect again");
    return request.reply({});
  }
  StepLedger ledger(options);
  constexpr std::uint64_t kMostSteps = std::numeric_limits<std::uint32_t>::max() - StepLedger::kMostStaleness;
  base::expects(options.first_step < kMostSteps - (1U << 20), "the first step is too large");
  counts_.staleness.resize(std::max<std::size_t>(counts_.staleness.size(), options.staleness + std::size_t{1}));
  end_generation(saved_step_ == options.first_step);
  meter_->begin_generation(options.num_workers);
  ledger_.emplace(std::move(ledger));
  generation_ = request.generation();
  token_ = token;
  auto const oldest = static_cast<std::uint32_t>(options.first_step);
  // Steps of a table never go back, and those of a later generation may.
  table_step_ = std::max(table_step_, oldest + options.staleness);
  begin_table_step({.step = table_step_, .oldest_in_use = oldest});
  request.reply({});
}

void ParameterServer::end_generation(bool come_again) {
  auto const text = "generation " + std::to_string(generation_) + " has ended";
  for (auto* const held : {&held_, &held_voids_}) {
    for (auto& [id, waiting] : *held) waiting.refuse(ReplyCode::kOldGeneration, text);
    held->clear();
  }
  if (held_save_) held_save_->second.refuse(ReplyCode::kOldGeneration, text);
  held_save_.reset();
  loaded_.reset();
  auto num_lost = come_again_.size();  // Batches of the generation before that have not come again.
  come_again_.clear();
  for (auto const& [id, batch] : batches_) {
    if (come_again && batch->values.tables.empty()) {
      come_again_.insert(id);
    } else {
      ++num_lost;
    }
  }
  counts_.void_generation += num_lost;
  meter_->end_generation(num_lost);
  batches_.clear();
  saved_step_.reset();
}

std::optional<ParameterServer::TableStep> ParameterServer::next_table_step(std::uint32_t worker) const {
  auto const staleness = ledger_->options().staleness;
  if (ledger_->options().shares_clock) {
    auto const oldest = static_cast<std::uint32_t>(ledger_->num_applied() + 1);
    return TableStep{.step = std::max(table_step_, oldest + staleness), .oldest_in_use = oldest};
  }
  auto const total = ledger_->total_applied() + 1;
  if (total % ledger_->num_clocks() != 0) return std::nullopt;
  auto const mean = static_cast<std::uint32_t>(total / ledger_->num_clocks());
  TableStep next{.step = std::max(table_step_, mean + staleness), .oldest_in_use = table_step_};
  BatchKey const applied{ledger_->num_applied(worker), worker};
  for (auto const& [id, batch] : batches_) {
    if (id != applied) next.oldest_in_use = std::min(next.oldest_in_use, batch->table_step);
  }
  return next;
}

void ParameterServer::begin_table_step(TableStep next) {
  for (auto const& table : tables_) table->begin_step(next.step, next.oldest_in_use);
}

void ParameterServer::expect_keys(std::string const& name, std::span<KeyList const> tables) const {
  std::size_t num_bytes = 0;
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    auto const& known = ids_of_tables_[merged];
    std::uint32_t last = *known.begin();  // Keys of a table are often adjacent.
    for (auto const table : tables[merged].tables) {
      if (table == last) continue;
      if (!known.contains(table)) {
        throw base::UsageError(name + ": table " + std::to_string(table) + " is not of merged table " +
                               std::to_string(merged));
      }
      last = table;
    }
    num_bytes += tables[merged].ids.size() * tables_[merged]->dim() * sizeof(float);
  }
  base::expects(num_bytes <= options_.max_rows_bytes, name + ": its rows have " + std::to_string(num_bytes) +
                                                          " bytes, and at most " +
                                                          std::to_string(options_.max_rows_bytes) + " are allowed");
}

void ParameterServer::look_up(Request& request) {
  auto decoded = decode_keys(request);
  auto const batch = decoded.batch;
  expect_keys(to_string(batch), decoded.tables);
  auto made = std::make_shared<Batch>();
  auto const share = meter_->count(decoded);
  auto const num_bytes = request.body().size();
  made->lookup = request.take_body();
  made->keys = std::move(decoded);
  BatchKey const id{batch.step, batch.worker};
  std::unique_lock lock(mutex_);
  made->table_step = table_step_;
  auto const [entry, is_new] = batches_.try_emplace(id);
  try {
    ledger_->add_lookup(batch.step, batch.worker);
  } catch (...) {  // Nothing was counted.
    if (is_new) batches_.erase(entry);
    throw;
  }
  entry->second = std::move(made);
  count_keys(num_bytes, entry->second->keys);
  if (come_again_.erase(id) == 0) {
    ++counts_.lookups;
    meter_->add(share);
  }
  if (!ledger_->may_answer(batch.step, batch.worker)) {
    held_.emplace(id, std::move(request));
    meter_->begin_hold(id);
    return;
  }
  last_worker_ = batch.worker;
  answer(id, request, lock);
  advance(lock);  // In exact order, parts may have waited for this answer.
}

// A batch that cannot be answered stays, so a void notice can end it.
void ParameterServer::answer(BatchKey id, Request& request, std::unique_lock<std::mutex>& lock) {
  auto const [step, worker] = id;
  auto const name = to_string(BatchId{.step = step, .worker = worker});
  auto const batch = batches_.at(id);
  auto const num_missing = step - std::min(step, ledger_->num_applied(worker));
  lock.unlock();
  Body body;
  std::size_t plain_bytes = 0;
  std::string error;
  try {
    std::shared_lock calls(table_calls_);
    body = rows_of(batch->keys.tables, true);
    calls.unlock();
    plain_bytes = body.size();
    body = packed(std::move(body), batch->keys.tables);
  } catch (std::exception const& caught) {
    error = caught.what();
  }
  lock.lock();
  if (!error.empty()) return request.refuse(ReplyCode::kFailed, name + ": its rows cannot be read: " + error);
  if (auto const found = batches_.find(id); found == batches_.end() || found->second != batch) {
    return request.refuse(ReplyCode::kFailed, name + ": it is void");
  }
  batch->is_answered = true;
  ++counts_.staleness[num_missing];
  ledger_->count_answer(step, worker);
  counts_.messages.plain_values += plain_bytes;
  counts_.messages.sent_values += body.size();
  request.reply(std::move(body));
}

DecodedLookup ParameterServer::decode_keys(Request const& request) const {
  auto const most_keys = options_.max_rows_bytes / (std::ranges::min(dims_) * sizeof(float));
  return decode_lookup(request.body(), tables_.size(), compression_, most_keys);
}

void ParameterServer::count_keys(std::size_t num_bytes, DecodedLookup const& lookup) {
  counts_.messages.sent_ids += num_bytes;
  counts_.messages.plain_ids += num_bytes + static_cast<std::uint64_t>(lookup.saved_bytes);
}

Body ParameterServer::packed(Body rows, std::span<KeyList const> keys) const {
  if (!compression_.values) return rows;
  std::vector<std::size_t> num_rows;
  for (auto const& each : keys) num_rows.push_back(each.ids.size());
  return encode_rows(dims_, num_rows, {reinterpret_cast<float const*>(rows.data()), rows.size() / sizeof(float)});
}

Body ParameterServer::rows_of(std::span<KeyList const> keys, bool are_trained) {
  std::size_t num_floats = 0;
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    num_floats += keys[merged].ids.size() * tables_[merged]->dim();
  }
  Body body(num_floats * sizeof(float));
  std::span<float> out(reinterpret_cast<float*>(body.data()), num_floats);
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    auto const of_table = view_of(keys[merged]);
    auto& table = *tables_[merged];
    auto const values = out.first(of_table.size() * table.dim());
    out = out.subspan(values.size());
    if (of_table.size() == 0) continue;
    if (are_trained) {
      table.read_or_insert(of_table, values);
      continue;
    }
    auto const reads_zeros = merged_[merged].reads_unknown_as_zeros;
    std::vector<embedding::KeyStatus> statuses(reads_zeros ? of_table.size() : 0);
    table.read(of_table, values, statuses);
    for (std::size_t i = 0; i < statuses.size(); ++i) {
      if (statuses[i] == embedding::KeyStatus::kAbsent) {
        std::ranges::fill(values.subspan(i * table.dim(), table.dim()), 0.0F);
      }
    }
  }
  return body;
}

void ParameterServer::read(Request& request) {
  base::expects(!configuration_.empty(), "the server has no tables yet");
  auto const decoded = decode_keys(request);
  expect_keys("a read", decoded.tables);
  std::unique_lock lock(mutex_);
  wait_for_step(lock);
  count_keys(request.body().size(), decoded);
  ++counts_.reads;
  lock.unlock();
  Body rows;
  {
    std::shared_lock const calls(table_calls_);
    rows = rows_of(decoded.tables, false);
  }
  auto const plain_bytes = rows.size();
  rows = packed(std::move(rows), decoded.tables);
  lock.lock();
  counts_.messages.plain_values += plain_bytes;
  counts_.messages.sent_values += rows.size();
  lock.unlock();
  request.reply(std::move(rows));
}

void ParameterServer::take_part(Request& request) {
  auto part = decode_part(request.body(), tables_.size(),
                          compression_.values ? std::span<std::size_t const>(dims_) : std::span<std::size_t const>());
  auto const name = to_string(part.batch);
  BatchKey const id{part.batch.step, part.batch.worker};
  auto const find_batch = [&] {  // The caller holds mutex_.
    auto const found = batches_.find(id);
    base::expects(part.batch.step < ledger_->num_applied(part.batch.worker) || found != batches_.end(),
                  name + ": it was not looked up");
    base::expects(found == batches_.end() || found->second->is_answered, name + ": its lookup has not been answered");
    return found == batches_.end() ? nullptr : found->second;
  };
  std::unique_lock lock(mutex_);
  auto const batch = find_batch();
  lock.unlock();
  bool is_finite = true;
  for (std::size_t merged = 0; merged < tables_.size() && batch != nullptr; ++merged) {
    auto const& values = part.tables[merged];
    auto const size = values.gradients.size(),
               expected = batch->keys.tables[merged].ids.size() * tables_[merged]->dim();
    base::expects(size == 0 || size == expected, name + ": merged table " + std::to_string(merged) + " has " +
                                                     std::to_string(size) + " gradients instead of " +
                                                     std::to_string(expected));
    base::expects(std::isfinite(values.rate), name + ": a learning rate is not finite");
    float mark = 1;
    if (size > 0) device_->mark_finite(values.gradients, &mark);
    is_finite = is_finite && mark == 1;
  }
  base::expects(is_finite || !options_.is_strict, name + ": a gradient is not finite");
  lock.lock();
  auto const& rules = ledger_->options();
  if (rules.sums_parts) expect_rates(part);
  base::expects(find_batch() == batch, name + ": it is void");
  bool const is_alone = !rules.sums_parts && !rules.is_exact;
  if (is_alone && is_finite && batch != nullptr) apply_alone(part.batch, *batch, part, lock);
  ledger_->add_part(part.batch.step, part.batch.worker);
  counts_.messages.sent_values += request.body().size();
  counts_.messages.plain_values += request.body().size() + static_cast<std::uint64_t>(part.saved_bytes);
  if (is_finite) {
    ++counts_.parts;
    if (!is_alone) {
      batch->part = request.take_body();
      batch->values = std::move(part);
    }
  } else {
    ++counts_.void_not_finite;
    meter_->count_loss(LossCause::kNotFinite);
    batches_.erase(id);
  }
  last_worker_ = id.second;
  request.reply(is_finite ? Body{} : encode_batch({.step = id.first, .worker = id.second}));
  advance(lock);
}

void ParameterServer::apply_alone(BatchId id, Batch& batch, DecodedPart const& part,
                                  std::unique_lock<std::mutex>& lock) {
  base::expects(!batch.is_applied, to_string(id) + ": its part has come before");
  ledger_->expect_part(id.step, id.worker);
  batch.is_applied = true;  // From now on neither another part nor a void notice is taken.
  auto const number = ledger_->options().shares_clock ? id.step + 1 : ledger_->total_applied() + 1;
  lock.unlock();
  try {
    std::shared_lock const calls(table_calls_);
    for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
      auto const& values = part.tables[merged];
      if (values.gradients.empty()) continue;
      tables_[merged]->update_keys(view_of(batch.keys.tables[merged]), values.gradients,
                                   {.learning_rate = values.rate, .number = number});
    }
  } catch (std::exception const& error) {
    lock.lock();
    fail(to_string(id) + " could not be applied: " + error.what());
    throw;
  }
  lock.lock();
}

void ParameterServer::fail(std::string const& failure) {
  failure_ = failure;
  base::log(base::LogLevel::kWarning, "hybrid", 0, "the parameter server has failed: " + failure_);
  held_.clear();
  held_voids_.clear();
  held_save_.reset();
}

void ParameterServer::expect_rates(DecodedPart const& part) const {
  for (auto each = batches_.lower_bound({part.batch.step, 0});
       each != batches_.end() && each->first.first == part.batch.step; ++each) {
    auto const& values = each->second->values.tables;
    for (std::size_t merged = 0; merged < values.size(); ++merged) {
      base::expects(values[merged].rate == part.tables[merged].rate, to_string(part.batch) + ": worker " +
                                                                         std::to_string(each->first.second) +
                                                                         " has another learning rate in this step");
    }
  }
}

void ParameterServer::take_void(Request& request) {
  auto const [batch, cause] = decode_void(request.body());
  std::unique_lock lock(mutex_);
  BatchKey const id{batch.step, batch.worker};
  auto const looked_up = batches_.find(id);
  base::expects(looked_up == batches_.end() || !looked_up->second->is_applied,
                to_string(batch) + ": its part has come before");
  ledger_->add_part(batch.step, batch.worker);
  if (auto const held = held_.find(id); held != held_.end()) {
    held->second.refuse(ReplyCode::kFailed, to_string(batch) + ": it is void");
    held_.erase(held);
    meter_->end_hold(id, std::nullopt);
  }
  batches_.erase(id);
  come_again_.erase(id);
  ++counts_.voids;
  meter_->count_loss(cause);
  // A worker without batches would run away from the others if its void notices were answered at once.
  if (ledger_->may_answer(batch.step, batch.worker)) {
    request.reply({});
  } else {
    held_voids_.emplace(id, std::move(request));
  }
  last_worker_ = batch.worker;
  advance(lock);
}

void ParameterServer::advance(std::unique_lock<std::mutex>& lock) noexcept {
  if (is_advancing_ || !failure_.empty()) return;  // Who advances looks again.
  is_advancing_ = true;
  std::optional<std::uint32_t> worker;
  try {
    while ((worker = ledger_->worker_to_apply())) {
      advance_clock(*worker, lock);
      write_if_due();
      ++num_advanced_;
      step_ended_.notify_all();
    }
  } catch (std::exception const& error) {
    fail("step " + std::to_string(ledger_->num_applied(*worker)) + " could not be applied: " + error.what());
  }
  is_advancing_ = false;
  step_ended_.notify_all();
}

void ParameterServer::advance_clock(std::uint32_t worker, std::unique_lock<std::mutex>& lock) {
  auto const step = ledger_->num_applied(worker);
  bool const is_shared = ledger_->options().shares_clock;
  auto const by_worker = is_shared ? last_worker_ : worker;
  auto const next = next_table_step(worker);
  std::vector<std::shared_ptr<Batch>> batches;
  for (auto each = batches_.lower_bound({step, 0}); each != batches_.end() && each->first.first == step; ++each) {
    if (!each->second->values.tables.empty()) batches.push_back(each->second);
  }
  lock.unlock();
  try {
    apply_step(step, batches);
    // Before lookups of the next step are answered, since it keeps their rows from eviction.
    if (next) begin_table_step(*next);
  } catch (...) {
    lock.lock();
    throw;
  }
  lock.lock();
  if (next) table_step_ = next->step;
  if (is_shared) {
    batches_.erase(batches_.begin(), batches_.lower_bound({step + 1, 0}));
  } else {
    batches_.erase({step, worker});
  }
  ledger_->finish_step(worker);
  answer_held(by_worker, lock);
}

void ParameterServer::wait_for_step(std::unique_lock<std::mutex>& lock) const {
  step_ended_.wait(lock, [this, before = num_advanced_] { return !is_advancing_ || num_advanced_ > before; });
}

void ParameterServer::answer_held(std::optional<std::uint32_t> by_worker, std::unique_lock<std::mutex>& lock) {
  auto const first_of = [this](auto& held) {
    auto const may_answer = [this](auto const& each) {
      return ledger_->may_answer(each.first.first, each.first.second);
    };
    // With a shared clock the oldest steps come first.
    if (ledger_->options().shares_clock && !held.empty() && !may_answer(*held.begin())) return held.end();
    return std::ranges::find_if(held, may_answer);
  };
  for (auto found = first_of(held_voids_); found != held_voids_.end(); found = first_of(held_voids_)) {
    held_voids_.extract(found).mapped().reply({});
  }
  for (auto found = first_of(held_); found != held_.end(); found = first_of(held_)) {
    auto held = held_.extract(found);
    meter_->end_hold(held.key(), by_worker);
    answer(held.key(), held.mapped(), lock);
  }
}

void ParameterServer::apply_step(std::uint64_t step, std::span<std::shared_ptr<Batch> const> batches) {
  if (ledger_->options().sums_parts) return apply_sum(step, batches);
  for (std::size_t i = 0; i < batches.size(); ++i) apply_sum(step, batches.subspan(i, 1));
}

// The sums of all tables are made before the first update, since that may fail.
void ParameterServer::apply_sum(std::uint64_t step, std::span<std::shared_ptr<Batch> const> batches) {
  std::vector<Sums> all;
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) all.push_back(sums_of(merged, batches));
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    auto const& sums = all[merged];
    if (sums.values.empty()) continue;
    tables_[merged]->update_keys(sums.keys.keys(), sums.values.span, {.learning_rate = sums.rate, .number = step + 1});
  }
}

ParameterServer::Sums ParameterServer::sums_of(std::size_t merged, std::span<std::shared_ptr<Batch> const> batches) {
  std::vector<embedding::KeyValues> pieces;
  double rate = 0;
  for (auto const& batch : batches) {
    auto const& values = batch->values.tables[merged];
    if (values.gradients.empty()) continue;
    if (pieces.empty()) rate = values.rate;
    pieces.push_back({.keys = view_of(batch->keys.tables[merged]), .values = values.gradients});
  }
  if (pieces.empty()) return {};
  auto const dim = tables_[merged]->dim();
  auto const all = device_->concatenate(pieces, dim);
  Sums sums{.keys = device_->deduplicate(all.keys()), .rate = rate};
  sums.values = device_->block<float>(sums.keys.num_rows() * dim);
  device_->reduce(sums.keys, {}, dim, all.values.span, sums.values.span);
  return sums;
}

ServerStatus ParameterServer::status() const {
  std::shared_lock const together(requests_);
  return present_status();
}

ServerStatus ParameterServer::present_status() const {
  std::unique_lock lock(mutex_);
  wait_for_step(lock);
  ServerStatus status = counts_;
  status.generation = generation_;
  status.num_applied = ledger_ ? ledger_->num_applied() : loaded_step_;
  status.held = held_.size();
  lock.unlock();
  for (auto const& table : tables_) {
    auto const counts = table->statistics();
    auto const size = table->size();
    status.rows += size.rows;
    status.cold_rows += size.cold_rows;
    status.pending += size.pending;
    status.bytes += size.key_bytes + size.row_bytes;
    status.evicted += counts.evicted;
    status.refused += counts.refused;
    status.dropped_gradients += counts.dropped_gradients;
    status.tables.push_back({.rows = size.rows,
                             .cold_rows = size.cold_rows,
                             .pending = size.pending,
                             .key_bytes = size.key_bytes,
                             .row_bytes = size.row_bytes,
                             .inserted = counts.inserted,
                             .evicted = counts.evicted,
                             .expired = counts.expired,
                             .refused = counts.refused,
                             .dropped_gradients = counts.dropped_gradients});
  }
  meter_->report(status);
  return status;
}

}  // namespace headway::hybrid
