// SPDX-License-Identifier: Apache-2.0

// Decides which requests a rank takes.
//
// Idea: a request that cannot be answered in time costs others their answers, so it is refused at once. The time of an
// answer is estimated from the last batches: those before it end one interval after the other, and its own takes some
// time from the queue to the end. Times vary, and a late answer has cost those behind it theirs, so the deadline must
// leave some factor more. The factor is learned, so that of 1,000 requests that are accepted some two take longer.
//
// Example: batches of 512 items end every 5 ms and take 12 ms each; 1,000 items wait. A request of 64 items comes with
//   a deadline in 30 ms. Two batches go before it, so the answer is expected in 2 * 5 + 12 = 22 ms, or with a factor of
//   1.5 in 33 ms: it is refused.
//
// Invariants: the queue is bounded in rows and in bytes. Each request is counted once, by its outcome.
//   A rank without a queue takes any request, since only new batches can correct averages that are too high.

#include "admission.hpp"

#include <algorithm>
#include <utility>

namespace headway::serving {

namespace {

std::size_t bytes_of(Request const& request) {
  std::size_t bytes = request.items.size_bytes();
  for (auto const& lists : request.features) bytes += lists.ids.size_bytes() + lists.lengths.size_bytes();
  for (auto const& rows : request.dense) bytes += rows.size_bytes();
  return bytes;
}

/// A moving average with a weight of 1/8 for the newest value.
void add_to(std::chrono::nanoseconds& average, std::chrono::nanoseconds value) {
  average = average.count() == 0 ? value : average + (value - average) / 8;
}

void add_to(EngineStatistics& statistics, BatchRecord const& batch) {
  ++statistics.batches;
  statistics.rows += batch.items;
  ++statistics.in_flight[std::clamp<std::size_t>(batch.in_flight, 1, statistics.in_flight.size()) - 1];
  for (auto const accepted : batch.accepted) {
    std::chrono::nanoseconds left = batch.replied - accepted;
    auto const add = [&](Stage stage, std::chrono::nanoseconds time) {
      statistics.stages[static_cast<std::size_t>(stage)].add(time);
      left -= time;
    };
    statistics.stages[static_cast<std::size_t>(Stage::kTotal)].add(left);
    add(Stage::kQueue, batch.taken - accepted);
    add(Stage::kDelay, batch.fetch_began - batch.taken);
    add(Stage::kFetch, batch.fetched - batch.fetch_began);
    add(Stage::kDenseQueue, batch.dense_began - batch.handed_over);
    add(Stage::kDense, batch.dense_ended - batch.dense_began);
    add(Stage::kEngine, left);
    ++statistics.requests[static_cast<std::size_t>(Outcome::kAnswered)];
  }
  for (auto const& arrival : batch.arrivals) {
    statistics.peer_waits[arrival.rank].add(arrival.time - batch.fetch_began);
  }
}

}  // namespace

Admission::Admission(std::shared_ptr<ServedModel const> model, EngineOptions const& options)
    : options_(options), model_(std::move(model)) {}

Reply Admission::accept(PendingPtr& request) {
  std::lock_guard const lock(mutex_);
  try {
    expect_fits(*request);
  } catch (RequestError const& error) {
    return refusal(Outcome::kInvalid, error.what());
  }
  request->num_bytes = bytes_of(request->request);
  if (is_draining_) return refusal(Outcome::kUnavailable, "the server is shutting down");
  if (!failure_.empty()) return refusal(Outcome::kUnavailable, failure_);
  if (request->deadline <= request->accepted) {
    return refusal(Outcome::kDeadlineExceeded, "the deadline had passed when the request came");
  }
  if (queue_.rows() + request->sizes.items > options_.max_queued_rows ||
      queue_.bytes() + request->num_bytes > options_.max_queued_bytes) {
    return refusal(Outcome::kQueueFull, "the queue is full: " + std::to_string(queue_.rows()) + " rows and " +
                                            std::to_string(queue_.bytes()) + " bytes wait");
  }
  auto const expected = request->allowed = expected_time(request->sizes.items);
  if (request->accepted + expected > request->deadline) {
    return refusal(Outcome::kDeadlineExceeded,
                   "the deadline cannot be met: " + std::to_string(queue_.rows()) +
                       " rows wait, and an answer is expected in " +
                       std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(expected).count()) + " ms");
  }
  queue_.push(std::exchange(request, nullptr));
  return {};
}

void Admission::expect_fits(PendingRequest& request) const {
  auto const& features = model_->manifest().features;
  for (std::size_t i = 0; i < std::min(features.size(), request.request.features.size()); ++i) {
    if (auto const size = request.request.features[i].ids.size(); size > options_.max_ids) {
      throw RequestError(features[i].name + ".ids has " + std::to_string(size) + " ids, and the limit is " +
                         std::to_string(options_.max_ids));
    }
  }
  request.sizes = sizes_of(request.request, model_->manifest());
  auto const most = room();
  auto const expect_most = [](char const* what, std::size_t size, std::size_t limit) {
    if (size <= limit) return;
    throw RequestError("the request has " + std::to_string(size) + " " + what + ", and the limit is " +
                       std::to_string(limit));
  };
  expect_most("items", request.sizes.items, most.items);
  expect_most("users", request.sizes.users, most.users);
  expect_most("values of a sequence", request.sizes.tokens, most.tokens);
}

Sizes Admission::room() const {
  auto room = model_->room();
  room.items = std::min(room.items, options_.max_rows);
  return room;
}

// The interval of batches is at least the time of the dense part.
std::chrono::nanoseconds Admission::expected_time(std::size_t rows) const {
  if (queue_.empty()) return std::chrono::nanoseconds(0);
  auto const num_batches = (queue_.rows() + rows) / room().items;
  auto const mean = std::max(batch_interval_, dense_time_) * static_cast<std::int64_t>(num_batches) + batch_time_;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(mean * margin_.factor());
}

void Admission::refuse_new() {
  std::lock_guard const lock(mutex_);
  is_draining_ = true;
}

void Admission::fail(std::string error) {
  {
    std::lock_guard const lock(mutex_);
    failure_ = std::move(error);
  }
  has_failed_.notify_all();
}

void Admission::recover(std::shared_ptr<ServedModel const> model) {
  std::lock_guard const lock(mutex_);
  model_ = std::move(model);
  failure_.clear();
}

bool Admission::wait_for_failure(std::stop_token const& stop) const {
  std::unique_lock lock(mutex_);
  return has_failed_.wait(lock, stop, [this] { return !failure_.empty(); });
}

std::string Admission::why_not_ready() const {
  std::lock_guard const lock(mutex_);
  return is_draining_ ? "the server is shutting down" : failure_;
}

bool Admission::has_ended() const {
  std::lock_guard const lock(mutex_);
  return is_draining_ && queue_.empty();
}

std::shared_ptr<ServedModel const> Admission::model() const {
  std::lock_guard const lock(mutex_);
  return model_;
}

void Admission::set_model(std::shared_ptr<ServedModel const> model) {
  std::lock_guard const lock(mutex_);
  model_ = std::move(model);
}

Admission::Taken Admission::take_batch(Clock::time_point now, bool is_forced) {
  std::lock_guard const lock(mutex_);
  bool const is_due = !queue_.empty() && now >= queue_.oldest().accepted + options_.batch_delay;
  bool const is_wanted = is_due || (is_draining_ && !queue_.empty()) || queue_.fills(room());
  if (!is_wanted && !is_forced) return {};
  return {.model = model_, .requests = queue_.take_batch(room())};
}

std::vector<PendingPtr> Admission::take_late(Clock::time_point now) {
  std::lock_guard const lock(mutex_);
  if (queue_.first_deadline() > now) return {};
  auto late = queue_.take_late(now);
  margin_.add_late(late.size());
  return late;
}

std::vector<PendingPtr> Admission::take_too_large() {
  std::vector<PendingPtr> taken;
  std::lock_guard const lock(mutex_);
  auto const most = room();
  while (!queue_.empty() && !most.holds(queue_.oldest().sizes)) taken.push_back(queue_.pop());
  return taken;
}

std::vector<PendingPtr> Admission::take_all() {
  std::lock_guard const lock(mutex_);
  return queue_.take_all();
}

void Admission::put_back(std::vector<PendingPtr> requests) {
  std::lock_guard const lock(mutex_);
  queue_.put_back(std::move(requests));
}

Clock::time_point Admission::next_event(bool can_begin) const {
  std::lock_guard const lock(mutex_);
  auto next = queue_.first_deadline();
  if (can_begin && !queue_.empty()) next = std::min(next, queue_.oldest().accepted + options_.batch_delay);
  return next;
}

Reply Admission::refuse_as(Outcome outcome, std::string error) {
  std::lock_guard const lock(mutex_);
  return refusal(outcome, std::move(error));
}

Reply Admission::refusal(Outcome outcome, std::string error) {
  ++statistics_.requests[static_cast<std::size_t>(outcome)];
  return {.outcome = outcome, .error = std::move(error), .version = model_->manifest().version};
}

void Admission::add(BatchRecord const& batch, std::span<PendingPtr const> requests) {
  auto const is_slow = [&](PendingPtr const& each) {
    return each->allowed.count() > 0 && batch.replied > each->accepted + each->allowed;
  };
  std::lock_guard const lock(mutex_);
  margin_.add_batch(static_cast<std::size_t>(std::ranges::count_if(requests, is_slow)), requests.size());
  add_to(batch_time_, batch.replied - batch.taken);
  add_to(dense_time_, batch.dense_ended - batch.dense_began);
  if (last_reply_ > batch.taken) add_to(batch_interval_, batch.replied - last_reply_);  // It did not wait for requests.
  last_reply_ = batch.replied;
  add_to(statistics_, batch);
}

void Admission::count_refused_version() {
  std::lock_guard const lock(mutex_);
  ++statistics_.refused_versions;
}

EngineStatistics Admission::statistics() const {
  std::lock_guard const lock(mutex_);
  auto statistics = statistics_;
  statistics.queued_rows = queue_.rows();
  return statistics;
}

}  // namespace headway::serving
