// SPDX-License-Identifier: Apache-2.0

// A parameter server: rows of tables, and the rules by which they are read and trained.
//
// Idea: a lookup of step t inserts keys and reads their rows once all steps below t - staleness have been applied
// (StepLedger). The server keeps the keys until the part with their gradients comes, so gradients travel without keys.
// When all parts of the oldest step are there, it adds them in the order of workers and makes one optimizer step per
// row. Then it answers the lookups that waited.
//
// Example: 2 workers, staleness 0, one table. Worker 0 looks up ids 5 and 6 in step 0, worker 1 looks up 5. They get
// rows, and send gradients g0, g1 and h0. The server updates row 5 by g0 + h0, and row 6 by g1. A lookup of step 1 that
// came meanwhile is answered now.
//
// Invariants:
//   A part or void notice counts once (StepLedger). What belongs to an older generation is refused.
//   Rows of a step that is not applied are not evicted: the step of a row is at least that of its last lookup, and
//   begin_step() protects rows from step num_applied on.
//   A key whose row is gone is skipped with its gradient, and the others keep theirs.
//   One mutex guards all, so no reader sees half an update.
// Complexity: O(K dim) for K keys of a request or a step. Memory: keys of the batches in the window, and parts that
// wait.

#include "headway/hybrid/parameter_server.hpp"

#include "headway/embedding/batch_device.hpp"
#include "headway/embedding/description.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace headway::hybrid {

namespace {

std::string name_of(BatchId batch) {
  return "batch of step " + std::to_string(batch.step) + ", worker " + std::to_string(batch.worker);
}

template <class Element>
std::vector<Element> copy_of(std::span<Element const> elements) {
  return {elements.begin(), elements.end()};
}

}  // namespace

struct ParameterServer::Keys {
  std::vector<std::uint64_t> ids;
  std::vector<std::uint32_t> tables, counts;

  [[nodiscard]] embedding::Keys view() const { return {.ids = ids, .tables = tables, .counts = counts}; }
};

struct ParameterServer::Batch {
  std::vector<Keys> keys;  ///< (merged tables) Empty for a void notice that came without a lookup.
  /// (merged tables) Gradients of each key, or empty; set when the part has come.
  std::vector<std::vector<float>> gradients{};
  std::vector<double> rates{};  ///< (merged tables)
};

struct ParameterServer::HeldLookup {
  Request request;
};

ParameterServer::ParameterServer(ParameterServerOptions options)
    : options_(std::move(options)), device_(embedding::make_host_batch_device(options_.thread_pool)) {}
ParameterServer::~ParameterServer() = default;

void ParameterServer::handle(Request& request) {
  std::lock_guard const lock(mutex_);
  switch (static_cast<ServerRequest>(request.kind())) {
    case ServerRequest::kConfigure:
      return configure(request);
    case ServerRequest::kBeginGeneration:
      return begin_generation(request);
    case ServerRequest::kRead:
      return read(request);
    case ServerRequest::kStatus:
      return request.reply(encode_status(status_locked()));
    case ServerRequest::kLookup:
    case ServerRequest::kPart:
    case ServerRequest::kVoid:
    case ServerRequest::kEndAt:
      break;
    default:
      throw base::UsageError("a parameter server has no requests of kind " + std::to_string(request.kind()));
  }
  expect_running();
  if (request.generation() != generation_) {
    base::expects(request.generation() < generation_, "generation " + std::to_string(request.generation()) +
                                                          " has not begun; this is " + std::to_string(generation_));
    return request.refuse(ReplyCode::kOldGeneration, "generation " + std::to_string(request.generation()) +
                                                         " has ended; this is " + std::to_string(generation_));
  }
  switch (static_cast<ServerRequest>(request.kind())) {
    case ServerRequest::kLookup:
      return look_up(request);
    case ServerRequest::kPart:
      return take_part(request);
    case ServerRequest::kVoid:
      return take_void(request);
    default:
      ledger_->end_at(decode_batch(request.body()).step);
      request.reply({});
      return advance();
  }
}

void ParameterServer::expect_running() const {
  base::expects(!configuration_.empty(), "the server has no tables yet");
  base::expects(ledger_.has_value(), "no generation has begun");
}

void ParameterServer::configure(Request& request) {
  auto const body = request.body();
  auto merged = decode_tables(body);
  if (configuration_.empty()) {
    base::expects(!merged.empty(), "a server needs at least one table");
    std::vector<std::unique_ptr<embedding::Table>> tables;
    for (auto& each : merged) {
      each.options.thread_pool = options_.thread_pool;
      tables.push_back(embedding::make_cpu_table(each.options));
    }
    merged_ = std::move(merged);
    tables_ = std::move(tables);
    configuration_ = copy_of(body);
  } else if (!std::ranges::equal(body, configuration_)) {
    auto const here = embedding::describe(merged_, embedding::Dedup::kBoth);
    auto const there = embedding::describe(merged, embedding::Dedup::kBoth);
    throw base::UsageError(here == there ? "the server has tables with other limits of rows"
                                         : "the server has these tables: " + here + ". The request has: " + there);
  }
  request.reply({});
}

void ParameterServer::begin_generation(Request& request) {
  base::expects(!configuration_.empty(), "the server has no tables yet");
  auto const options = decode_generation(request.body());
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
    return request.reply({});
  }
  StepLedger ledger(options);
  base::expects(options.first_step + options.staleness < std::numeric_limits<std::uint32_t>::max() - (1U << 20),
                "the first step is too large");
  for (auto& [id, held] : held_) {
    held.request.refuse(ReplyCode::kOldGeneration, "generation " + std::to_string(generation_) + " has ended");
  }
  held_.clear();
  counts_.void_generation += batches_.size();
  batches_.clear();
  ledger_.emplace(std::move(ledger));
  generation_ = request.generation();
  counts_.staleness.resize(std::max<std::size_t>(counts_.staleness.size(), options.staleness + std::size_t{1}));
  begin_table_step();
  request.reply({});
}

void ParameterServer::begin_table_step() {
  auto const oldest = static_cast<std::uint32_t>(ledger_->num_applied());
  // Steps of a table never go back, and those of a later generation may.
  table_step_ = std::max(table_step_, oldest + ledger_->options().staleness);
  for (auto const& table : tables_) table->begin_step(table_step_, oldest);
}

void ParameterServer::look_up(Request& request) {
  auto const decoded = decode_lookup(request.body(), tables_.size());
  auto const& batch = decoded.batch;
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    auto const& known = merged_[merged].tables;
    for (auto const table : decoded.tables[merged].tables) {
      base::expects(
          std::ranges::find(known, table) != known.end(),
          name_of(batch) + ": table " + std::to_string(table) + " is not of merged table " + std::to_string(merged));
    }
  }
  ledger_->add_lookup(batch.step, batch.worker);
  ++counts_.lookups;
  BatchKey const id{batch.step, batch.worker};
  auto& entry = batches_[id];
  for (auto const& keys : decoded.tables) {
    entry.keys.push_back({.ids = copy_of(keys.ids), .tables = copy_of(keys.tables), .counts = copy_of(keys.counts)});
  }
  if (!ledger_->may_answer(batch.step)) {
    held_.emplace(id, HeldLookup{std::move(request)});
    return;
  }
  answer(id, request);
  advance();  // In exact order, parts may have waited for this answer.
}

void ParameterServer::answer(BatchKey id, Request& request) {
  auto const& entry = batches_.at(id);
  std::size_t num_floats = 0;
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    num_floats += entry.keys[merged].ids.size() * tables_[merged]->dim();
  }
  std::vector<std::byte> body(num_floats * sizeof(float));
  std::span<float> out(reinterpret_cast<float*>(body.data()), num_floats);
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    auto const keys = entry.keys[merged].view();
    if (keys.size() == 0) continue;
    auto const rows = device_->block<embedding::RowId>(keys.size());
    auto const values = out.first(keys.size() * tables_[merged]->dim());
    tables_[merged]->find_or_insert(keys, rows.span, {});
    tables_[merged]->gather(keys, rows.span, values);
    out = out.subspan(values.size());
  }
  auto const [step, worker] = id;
  auto const lacking = step - std::min(step, ledger_->num_applied());
  ++counts_.staleness[lacking];
  ledger_->count_answer(step, worker);
  request.reply(std::move(body));
}

void ParameterServer::read(Request& request) {
  base::expects(!configuration_.empty(), "the server has no tables yet");
  auto const decoded = decode_lookup(request.body(), tables_.size());
  std::vector<float> all;
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    auto const& list = decoded.tables[merged];
    embedding::Keys const keys{.ids = list.ids, .tables = list.tables, .counts = list.counts};
    auto const& table = *tables_[merged];
    auto const rows = device_->block<embedding::RowId>(keys.size());
    auto const values = device_->block<float>(keys.size() * table.dim());
    if (keys.size() == 0) continue;
    table.find(keys, rows.span, {});
    table.gather(keys, rows.span, values.span);
    if (merged_[merged].reads_unknown_as_zeros) device_->mask_rows(rows.span, table.dim(), values.span);
    all.insert(all.end(), values.span.begin(), values.span.end());
  }
  ++counts_.reads;
  request.reply(copy_of(std::as_bytes(std::span<float const>(all))));
}

void ParameterServer::take_part(Request& request) {
  auto const part = decode_part(request.body(), tables_.size());
  auto const& batch = part.batch;
  BatchKey const id{batch.step, batch.worker};
  auto const found = batches_.find(id);
  base::expects(batch.step < ledger_->num_applied() || found != batches_.end(),
                name_of(batch) + ": it was not looked up");
  base::expects(!held_.contains(id), name_of(batch) + ": its lookup has not been answered");
  bool is_finite = true;
  for (std::size_t merged = 0; merged < tables_.size() && found != batches_.end(); ++merged) {
    auto const& values = part.tables[merged];
    auto const size = values.gradients.size();
    auto const expected = found->second.keys[merged].ids.size() * tables_[merged]->dim();
    base::expects(size == 0 || size == expected, name_of(batch) + ": merged table " + std::to_string(merged) + " has " +
                                                     std::to_string(size) + " gradients instead of " +
                                                     std::to_string(expected));
    base::expects(std::isfinite(values.rate), name_of(batch) + ": a learning rate is not finite");
    float mark = 1;
    if (size > 0) device_->mark_finite(values.gradients, &mark);
    is_finite = is_finite && mark == 1;
  }
  base::expects(is_finite || !options_.is_strict, name_of(batch) + ": a gradient is not finite");
  expect_rates(part);
  ledger_->add_part(batch.step, batch.worker);
  auto& entry = found->second;
  if (is_finite) {
    for (auto const& values : part.tables) {
      entry.gradients.push_back(copy_of(values.gradients));
      entry.rates.push_back(values.rate);
    }
    ++counts_.parts;
  } else {
    ++counts_.void_not_finite;
    batches_.erase(found);
  }
  request.reply({});
  advance();
}

void ParameterServer::expect_rates(DecodedPart const& part) const {
  for (auto each = batches_.lower_bound({part.batch.step, 0});
       each != batches_.end() && each->first.first == part.batch.step; ++each) {
    for (std::size_t merged = 0; merged < each->second.rates.size(); ++merged) {
      base::expects(each->second.rates[merged] == part.tables[merged].rate,
                    name_of(part.batch) + ": worker " + std::to_string(each->first.second) +
                        " has another learning rate in this step");
    }
  }
}

void ParameterServer::take_void(Request& request) {
  auto const batch = decode_batch(request.body());
  ledger_->add_part(batch.step, batch.worker);
  BatchKey const id{batch.step, batch.worker};
  if (auto const held = held_.find(id); held != held_.end()) {
    held->second.request.refuse(ReplyCode::kFailed, name_of(batch) + ": it is void");
    held_.erase(held);
  }
  batches_.erase(id);
  ++counts_.voids;
  request.reply({});
  advance();
}

void ParameterServer::advance() {
  while (ledger_->may_apply()) {
    apply_step();
    ledger_->finish_step();
    begin_table_step();
    answer_held();
  }
}

void ParameterServer::answer_held() {
  while (!held_.empty() && ledger_->may_answer(held_.begin()->first.first)) {
    auto held = held_.extract(held_.begin());
    answer(held.key(), held.mapped().request);
  }
}

void ParameterServer::apply_step() {
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) update(merged);
  auto const step = ledger_->num_applied();
  batches_.erase(batches_.begin(), batches_.lower_bound({step + 1, 0}));
}

void ParameterServer::update(std::size_t merged) {
  auto const step = ledger_->num_applied();
  std::vector<embedding::KeyValues> pieces;
  double rate = 0;
  for (auto each = batches_.lower_bound({step, 0}); each != batches_.end() && each->first.first == step; ++each) {
    auto const& batch = each->second;
    if (batch.gradients.empty() || batch.gradients[merged].empty()) continue;
    if (pieces.empty()) rate = batch.rates[merged];
    pieces.push_back({.keys = batch.keys[merged].view(), .values = batch.gradients[merged]});
  }
  if (pieces.empty()) return;
  auto& table = *tables_[merged];
  auto const all = device_->concatenate(pieces, table.dim());
  auto const once = device_->deduplicate(all.keys());
  auto const sums = device_->block<float>(once.num_rows() * table.dim());
  device_->reduce(once, {}, table.dim(), all.values.span, sums.span);
  auto const keys = once.keys();
  auto const rows = device_->block<embedding::RowId>(keys.size());
  table.find(keys, rows.span, {});
  table.update(keys, rows.span, sums.span, {.learning_rate = rate, .number = step + 1});
}

ServerStatus ParameterServer::status() const {
  std::lock_guard const lock(mutex_);
  return status_locked();
}

ServerStatus ParameterServer::status_locked() const {
  ServerStatus status = counts_;
  status.generation = generation_;
  status.num_applied = ledger_ ? ledger_->num_applied() : 0;
  status.held = held_.size();
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
  }
  return status;
}

}  // namespace headway::hybrid
