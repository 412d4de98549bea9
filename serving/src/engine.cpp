// SPDX-License-Identifier: Apache-2.0

// The loop of a rank that serves.
//
// Idea: one thread does everything that is short, and never waits for one thing: it takes requests, sends keys, answers
// the keys of peers, hands batches to the dense part, and replies. The dense part takes milliseconds, so it has a
// thread of its own. When nothing can be done, the loop sleeps until a request, a message, the end of a run or the next
// moment in time: a deadline, or the end of a batch's delay.
//
// Example: max_rows = 512, batch_delay = 2 ms, 3 batches in flight at most.
//   At 0 ms a request of 64 rows comes. At 2 ms its batch begins with the 192 rows that wait by then: its keys leave.
//   At 2.1 ms a peer's keys arrive and are answered. At 2.4 ms all rows of the batch are there, and the dense part
//   runs, until 5 ms. Meanwhile two more batches may begin. At 5 ms the batch is replied to.
//
// Order within a round: peers are answered first, since their batches wait for it; then batches go on, and only then a
// new one begins.
// Invariants: each accepted request is replied to once, at its deadline at the latest, whatever the dense part does.
//   A request leaves its batch at its deadline if the keys are not sent, so it costs nothing more.
//   A batch has requests of one model, and its rows come from one version of the tables.
// Threads: submit() and statistics() share `mutex_` with the loop, which holds it for the queue and counters alone.
// Complexity: a round looks at all batches in flight, of which there are a few, and all queued requests if one is late.

#include "headway/serving/engine.hpp"

#include "batch_inputs.hpp"
#include "dense_runner.hpp"
#include "headway/base/log.hpp"
#include "headway/base/status.hpp"
#include "request_queue.hpp"
#include "wake_up.hpp"

#include <condition_variable>
#include <future>
#include <list>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

namespace headway::serving {

namespace {

/// Requests that are served together.
struct Batch {
  std::uint64_t number = 0;
  std::shared_ptr<ServedModel const> model{};
  std::vector<PendingPtr> requests{};
  std::shared_ptr<BatchInputs> inputs{};       ///< Set when the keys are sent; shared with the dense run.
  std::unique_ptr<RowFetcher::Fetch> fetch{};  ///< Until all rows are here.
  Clock::time_point taken{}, keys_known{}, fetch_began{}, fetched{}, handed_over{};
  bool is_forced = false;  ///< A peer waits for it, so it is fetched even without requests.
};

/// Does the dense part compute the batch, or will next?
bool is_computing(Batch const& batch) { return batch.inputs != nullptr && batch.fetch == nullptr; }

void call(ReplyFunction& reply, Reply&& with) {
  if (reply) std::exchange(reply, nullptr)(std::move(with));
}

std::size_t bytes_of(Request const& request) {
  std::size_t bytes = request.items.size_bytes();
  for (auto const& lists : request.features) bytes += lists.ids.size_bytes() + lists.lengths.size_bytes();
  for (auto const& rows : request.dense) bytes += rows.size_bytes();
  return bytes;
}

/// Rows [first, first + count) of an output.
OutputRows slice(OutputRows const& all, std::size_t first, std::size_t count) {
  auto const width = static_cast<std::ptrdiff_t>(
      std::accumulate(all.row_shape.begin(), all.row_shape.end(), std::int64_t{1}, std::multiplies<>()));
  auto const begin = all.values.begin() + static_cast<std::ptrdiff_t>(first) * width;
  return {.values = {begin, begin + static_cast<std::ptrdiff_t>(count) * width}, .row_shape = all.row_shape};
}

/// A moving average with a weight of 1/8 for the newest value.
void add_to(std::chrono::nanoseconds& average, std::chrono::nanoseconds value) {
  average = average.count() == 0 ? value : average + (value - average) / 8;
}

}  // namespace

class Engine::Loop {
 public:
  Loop(std::shared_ptr<ServedModel const> model, std::unique_ptr<RowFetcher> fetcher, EngineOptions options)
      : options_(std::move(options)),
        model_(std::move(model)),
        fetcher_(std::move(fetcher)),
        runner_([wake_up = wake_up_] { wake_up->ring(); }) {
    base::expects(options_.max_rows > 0 && options_.max_in_flight > 0, "max_rows and max_in_flight must be above 0");
    base::expects(options_.batch_delay.count() >= 0, "batch_delay must not be negative");
    models_.emplace(model_->manifest().number, model_);
    thread_ = std::jthread([this] { run(); });
  }
  ~Loop() { drain(); }
  Loop(Loop const&) = delete;
  Loop& operator=(Loop const&) = delete;

  void submit(Request request, Clock::time_point deadline, ReplyFunction reply);
  void refuse_new();
  void drain();
  void reconnect(std::shared_ptr<ServedModel const> model, std::unique_ptr<RowFetcher> fetcher);
  /// Runs `work` on the thread of the loop, and waits for it. @throws what it throws
  void run_on_loop(std::function<void()> work);
  void add_model(std::shared_ptr<ServedModel const> model, std::vector<embedding::ReadTable> tables);
  void switch_to(std::uint64_t number);
  void wait_for_batches_of(std::uint64_t number);
  void remove_model(std::uint64_t number);
  [[nodiscard]] bool wait_for_loss(std::stop_token const& stop) const {
    std::unique_lock lock(mutex_);
    return has_failed_.wait(lock, stop, [this] { return !failure_.empty() && next_fetcher_ == nullptr; });
  }
  [[nodiscard]] std::string why_not_ready() const;
  [[nodiscard]] std::shared_ptr<ServedModel const> model() const {
    std::lock_guard const lock(mutex_);
    return model_;
  }
  [[nodiscard]] EngineStatistics statistics() const {
    std::lock_guard const lock(mutex_);
    auto statistics = statistics_;
    statistics.queued_rows = queue_.rows();
    return statistics;
  }

 private:
  void run() noexcept;
  /// Goes once through everything that can be done. @returns whether anything was
  bool advance();
  void sleep();

  /// Refuses a request, or puts it into the queue. @returns the refusal; kAnswered: it waits
  Reply enqueue(PendingPtr& request);
  [[nodiscard]] Sizes room() const;
  /// Time until a request that comes now would be answered. Holds `mutex_`.
  [[nodiscard]] std::chrono::nanoseconds expected_time(std::size_t rows) const;

  void do_work();
  /// Ends the loop.
  void end() {
    {
      std::lock_guard const lock(mutex_);
      is_over_ = true;
    }
    do_work();  // Somebody may wait for it.
  }
  /// Takes the fetcher of a new group, if there is one. @returns whether the group can serve
  bool take_fetcher();
  /// Refuses requests that were accepted for a version with larger buckets.
  void refuse_too_large();
  bool begin_batch();
  [[nodiscard]] bool is_preparing() const;
  bool send_keys();
  bool take_rows();
  bool take_outputs();
  void finish(Batch& batch, DenseRun& run);
  void expire();
  void refuse(PendingRequest& request, Outcome outcome, std::string error);
  void refuse_all(Outcome outcome, std::string const& error);
  void fail(std::string const& error);
  [[nodiscard]] std::string late_error(Batch const* batch) const;
  [[nodiscard]] bool is_idle() const;

  EngineOptions const options_;
  std::shared_ptr<WakeUp> const wake_up_ = std::make_shared<WakeUp>();
  mutable std::mutex mutex_;
  mutable std::condition_variable_any has_failed_;
  bool is_draining_ = false, is_over_ = false;
  std::string failure_;                       ///< Why the group cannot serve; empty if it can.
  std::unique_ptr<RowFetcher> next_fetcher_;  ///< Uses a new group. The loop takes it, with `next_model_`.
  std::shared_ptr<ServedModel const> next_model_;
  std::shared_ptr<ServedModel const> model_;
  std::vector<std::function<void()>> work_;  ///< For the loop; see run_on_loop().
  RequestQueue queue_;
  EngineStatistics statistics_;
  // Averages of batches: time between two ends under load, time from the queue to the end, and that of the dense part.
  std::chrono::nanoseconds batch_interval_{0}, batch_time_{0}, dense_time_{0};

  // Only the loop uses the rest.
  std::unique_ptr<RowFetcher> fetcher_;
  std::map<std::uint64_t, std::shared_ptr<ServedModel const>> models_;  ///< Versions of the fetcher, by number.
  std::list<Batch> batches_;                                            ///< In flight, oldest first.
  std::uint64_t num_batches_ = 0;
  Clock::time_point last_finish_{};
  DenseRunner runner_;
  std::jthread thread_;
};

void Engine::Loop::submit(Request request, Clock::time_point deadline, ReplyFunction reply) {
  auto pending = std::make_unique<PendingRequest>();
  pending->request = std::move(request);
  pending->accepted = Clock::now();
  pending->deadline = deadline;
  pending->reply = std::move(reply);
  auto refusal = enqueue(pending);
  if (pending == nullptr) return wake_up_->ring();
  refusal.version = model()->manifest().version;
  call(pending->reply, std::move(refusal));
}

Reply Engine::Loop::enqueue(PendingPtr& request) {
  std::lock_guard const lock(mutex_);
  auto const refuse_as = [&](Outcome outcome, std::string error) {
    ++statistics_.requests[static_cast<std::size_t>(outcome)];
    return Reply{.outcome = outcome, .error = std::move(error)};
  };
  try {
    request->sizes = sizes_of(request->request, model_->manifest());
    auto const most = room();
    auto const expect_most = [](char const* what, std::size_t size, std::size_t limit) {
      if (size <= limit) return;
      throw RequestError("the request has " + std::to_string(size) + " " + what + ", and the limit is " +
                         std::to_string(limit));
    };
    expect_most("items", request->sizes.items, most.items);
    expect_most("users", request->sizes.users, most.users);
    expect_most("values of a sequence", request->sizes.tokens, most.tokens);
  } catch (RequestError const& error) {
    return refuse_as(Outcome::kInvalid, error.what());
  }
  request->num_bytes = bytes_of(request->request);
  if (is_draining_) return refuse_as(Outcome::kUnavailable, "the server is shutting down");
  if (!failure_.empty()) return refuse_as(Outcome::kUnavailable, failure_);
  if (request->deadline <= request->accepted) {
    return refuse_as(Outcome::kDeadlineExceeded, "the deadline had passed when the request came");
  }
  if (queue_.rows() + request->sizes.items > options_.max_queued_rows ||
      queue_.bytes() + request->num_bytes > options_.max_queued_bytes) {
    return refuse_as(Outcome::kQueueFull, "the queue is full: " + std::to_string(queue_.rows()) + " rows and " +
                                              std::to_string(queue_.bytes()) + " bytes wait");
  }
  auto const expected = expected_time(request->sizes.items);
  if (request->accepted + expected > request->deadline) {
    return refuse_as(
        Outcome::kDeadlineExceeded,
        "the deadline cannot be met: " + std::to_string(queue_.rows()) + " rows wait, and an answer is expected in " +
            std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(expected).count()) + " ms");
  }
  queue_.push(std::exchange(request, nullptr));
  return {};
}

Sizes Engine::Loop::room() const {
  auto room = model_->room();
  room.items = std::min(room.items, options_.max_rows);
  return room;
}

// The batches before it end one interval after the other, which is at least the time of the dense part, and its own
// takes `batch_time_`. An idle engine takes any request, since only new batches can correct averages that are too high.
std::chrono::nanoseconds Engine::Loop::expected_time(std::size_t rows) const {
  if (queue_.empty()) return std::chrono::nanoseconds(0);
  auto const num_batches = (queue_.rows() + rows) / room().items;
  return std::max(batch_interval_, dense_time_) * static_cast<std::int64_t>(num_batches) + batch_time_;
}

void Engine::Loop::refuse_new() {
  {
    std::lock_guard const lock(mutex_);
    is_draining_ = true;
  }
  wake_up_->ring();
}

void Engine::Loop::drain() {
  refuse_new();
  if (thread_.joinable()) thread_.join();
}

std::string Engine::Loop::why_not_ready() const {
  std::lock_guard const lock(mutex_);
  return is_draining_ ? "the server is shutting down" : failure_;
}

void Engine::Loop::run() noexcept {
  while (!is_over_) {
    bool has_moved = true;
    try {
      has_moved = advance();
    } catch (std::exception const& error) {
      fail(error.what());
    }
    expire();
    if (!has_moved) sleep();
  }
}

bool Engine::Loop::advance() {
  do_work();
  bool const is_connected = take_fetcher();
  bool has_moved = take_outputs();
  // First, since peers that have left already are no loss.
  if (is_idle() && (!is_connected || fetcher_->leave())) {
    end();
    return true;
  }
  if (is_connected) {
    has_moved |= fetcher_->answer_peers();
    has_moved |= take_rows();
    has_moved |= begin_batch();
    has_moved |= send_keys();
  }
  return has_moved;
}

void Engine::Loop::do_work() {
  std::vector<std::function<void()>> work;
  {
    std::lock_guard const lock(mutex_);
    work.swap(work_);
  }
  for (auto const& each : work) each();
}

void Engine::Loop::run_on_loop(std::function<void()> work) {
  auto const task = std::make_shared<std::packaged_task<void()>>(std::move(work));
  auto done = task->get_future();
  {
    std::lock_guard const lock(mutex_);
    base::expects(!is_over_, "the engine has ended");
    work_.emplace_back([task] { (*task)(); });
  }
  wake_up_->ring();
  done.get();
}

void Engine::Loop::add_model(std::shared_ptr<ServedModel const> model, std::vector<embedding::ReadTable> tables) {
  run_on_loop([&] {
    auto const number = model->manifest().number;
    fetcher_->add_version(number, std::move(tables));
    models_.emplace(number, std::move(model));
  });
}

void Engine::Loop::switch_to(std::uint64_t number) {
  run_on_loop([&] {
    auto const found = models_.find(number);
    base::expects(found != models_.end(), "switch_to: the version was not added");
    std::lock_guard const lock(mutex_);
    model_ = found->second;
  });
}

void Engine::Loop::wait_for_batches_of(std::uint64_t number) {
  bool is_there = true;
  while (is_there) {
    run_on_loop([&] {
      is_there =
          std::ranges::any_of(batches_, [&](Batch const& batch) { return batch.model->manifest().number == number; });
    });
    if (is_there) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Engine::Loop::remove_model(std::uint64_t number) {
  run_on_loop([&] {
    fetcher_->remove_version(number);
    models_.erase(number);
  });
}

bool Engine::Loop::take_fetcher() {
  std::unique_ptr<RowFetcher> old;  // Destroyed without the lock.
  std::lock_guard const lock(mutex_);
  if (next_fetcher_ != nullptr) {
    old = std::exchange(fetcher_, std::move(next_fetcher_));
    model_ = std::move(next_model_);
    models_ = {{model_->manifest().number, model_}};
    failure_.clear();
  }
  return failure_.empty();
}

void Engine::Loop::reconnect(std::shared_ptr<ServedModel const> model, std::unique_ptr<RowFetcher> fetcher) {
  {
    std::lock_guard const lock(mutex_);
    base::expects(!failure_.empty() && next_fetcher_ == nullptr, "reconnect: no rank was lost");
    next_fetcher_ = std::move(fetcher);
    next_model_ = std::move(model);
  }
  wake_up_->ring();
}

bool Engine::Loop::is_idle() const {
  std::lock_guard const lock(mutex_);
  return is_draining_ && queue_.empty() && batches_.empty();
}

bool Engine::Loop::is_preparing() const {
  return std::ranges::any_of(batches_, [](Batch const& batch) { return batch.inputs == nullptr; });
}

void Engine::Loop::refuse_too_large() {
  std::vector<PendingPtr> refused;
  {
    std::lock_guard const lock(mutex_);
    auto const most = room();
    while (!queue_.empty() && !most.holds(queue_.oldest().sizes)) refused.push_back(queue_.pop());
  }
  for (auto& request : refused) {
    refuse(*request, Outcome::kInvalid, "the new version of the model has no bucket for the request");
  }
}

bool Engine::Loop::begin_batch() {
  refuse_too_large();
  if (batches_.size() >= options_.max_in_flight) return false;
  Batch batch;
  batch.is_forced = fetcher_->must_begin() && !is_preparing();
  {
    std::lock_guard const lock(mutex_);
    batch.taken = Clock::now();
    bool const is_due = !queue_.empty() && batch.taken >= queue_.oldest().accepted + options_.batch_delay;
    bool const is_wanted = is_due || (is_draining_ && !queue_.empty()) || queue_.fills(room());
    if (!is_wanted && !batch.is_forced) return false;
    batch.requests = queue_.take_batch(room());
    batch.model = model_;
  }
  batch.number = num_batches_++;
  batch.keys_known = batch.taken;
  if (options_.delay_before_keys && !batch.requests.empty()) {
    batch.keys_known += std::chrono::duration_cast<Clock::duration>(options_.delay_before_keys());
  }
  batches_.push_back(std::move(batch));
  return true;
}

bool Engine::Loop::send_keys() {
  bool has_sent = false;
  for (auto batch = batches_.begin(); batch != batches_.end();) {
    if (batch->inputs != nullptr || Clock::now() < batch->keys_known) {
      ++batch;
      continue;
    }
    std::erase_if(batch->requests, [](PendingPtr const& each) { return !each->reply; });  // They were late.
    has_sent = true;
    if (batch->requests.empty() && !batch->is_forced) {
      batch = batches_.erase(batch);
      continue;
    }
    batch->fetch_began = Clock::now();
    Sizes sizes;
    for (auto const& request : batch->requests) sizes += request->sizes;
    auto const& model = *batch->model;
    auto const inputs = std::make_shared<BatchInputs>(model.manifest(), model.merged(), model.part_for(sizes));
    for (auto const& request : batch->requests) {
      request->first_item = inputs->add(request->request, request->sizes);
      request->request = {};  // Its memory is no longer needed.
    }
    batch->fetch = fetcher_->begin(model.manifest().number, inputs->features());
    batch->inputs = inputs;  // Not before: begin() throws if the group has failed.
    ++batch;
  }
  return has_sent;
}

bool Engine::Loop::take_rows() {
  bool has_taken = false;
  for (auto batch = batches_.begin(); batch != batches_.end(); ++batch) {
    if (batch->fetch == nullptr) continue;
    try {
      if (!batch->fetch->poll()) continue;
      if (batch->requests.empty()) {
        batches_.erase(batch);
        return true;
      }
      batch->fetched = Clock::now();
      DenseRun run{.batch = batch->number, .model = batch->model->dense(), .part = batch->inputs->part()};
      run.inputs = batch->inputs->take_rows(*batch->fetch);
      run.memory = batch->inputs;
      batch->fetch = nullptr;
      batch->handed_over = Clock::now();
      runner_.start(std::move(run));
    } catch (base::OperationError const&) {
      throw;  // The group has failed.
    } catch (std::exception const& error) {
      for (auto& request : batch->requests) refuse(*request, Outcome::kFailed, error.what());
      batches_.erase(batch);
      return true;
    }
    has_taken = true;
  }
  return has_taken;
}

bool Engine::Loop::take_outputs() {
  auto ended = runner_.take_ended();
  for (auto& run : ended) {
    auto const batch = std::ranges::find(batches_, run.batch, &Batch::number);
    if (batch == batches_.end()) continue;  // The group failed meanwhile.
    finish(*batch, run);
    batches_.erase(batch);
  }
  return !ended.empty();
}

void Engine::Loop::finish(Batch& batch, DenseRun& run) {
  auto const& manifest = batch.model->manifest();
  if (!run.error.empty()) {
    for (auto& request : batch.requests) refuse(*request, Outcome::kFailed, "the model has failed: " + run.error);
    return;
  }
  std::vector<PendingRequest*> answered;
  for (auto& request : batch.requests) {
    if (!request->reply) continue;
    Reply reply{.version = manifest.version, .num_items = request->sizes.items};
    for (auto const& output : run.outputs) {
      reply.outputs.push_back(slice(output, request->first_item, request->sizes.items));
    }
    call(request->reply, std::move(reply));
    answered.push_back(request.get());
  }
  auto const now = Clock::now();
  std::lock_guard const lock(mutex_);
  add_to(batch_time_, now - batch.taken);
  add_to(dense_time_, run.ended - run.began);
  if (last_finish_ > batch.taken) add_to(batch_interval_, now - last_finish_);  // It did not wait for requests.
  last_finish_ = now;
  ++statistics_.batches;
  statistics_.rows += batch.inputs->sizes().items;
  for (auto const* request : answered) {
    std::chrono::nanoseconds left = now - request->accepted;
    auto const add = [&](Stage stage, std::chrono::nanoseconds time) {
      statistics_.stages[static_cast<std::size_t>(stage)].add(time);
      left -= time;
    };
    statistics_.stages[static_cast<std::size_t>(Stage::kTotal)].add(left);
    add(Stage::kQueue, batch.taken - request->accepted);
    add(Stage::kDelay, batch.fetch_began - batch.taken);
    add(Stage::kFetch, batch.fetched - batch.fetch_began);
    add(Stage::kDenseQueue, run.began - batch.handed_over);
    add(Stage::kDense, run.ended - run.began);
    add(Stage::kEngine, left);
    ++statistics_.requests[static_cast<std::size_t>(Outcome::kAnswered)];
  }
}

void Engine::Loop::refuse(PendingRequest& request, Outcome outcome, std::string error) {
  if (!request.reply) return;
  Reply reply{.outcome = outcome, .error = std::move(error)};
  {
    std::lock_guard const lock(mutex_);
    ++statistics_.requests[static_cast<std::size_t>(outcome)];
    reply.version = model_->manifest().version;
  }
  call(request.reply, std::move(reply));
}

std::string Engine::Loop::late_error(Batch const* batch) const {
  std::string const late = "the deadline has passed while ";
  if (batch == nullptr) return late + "the request waited for a batch";
  if (batch->inputs == nullptr) return late + "the keys of its batch were not known";
  if (is_computing(*batch)) return late + "the model computed its batch";
  int const rank = batch->fetch->missing_rank();
  return late + (rank < 0 ? "rows were missing" : "rank " + std::to_string(rank) + " had not sent its rows");
}

void Engine::Loop::expire() {
  auto const now = Clock::now();
  std::vector<PendingPtr> late;
  {
    std::lock_guard const lock(mutex_);
    if (queue_.first_deadline() <= now) late = queue_.take_late(now);
  }
  for (auto& request : late) refuse(*request, Outcome::kDeadlineExceeded, late_error(nullptr));
  for (auto& batch : batches_) {
    for (auto& request : batch.requests) {
      if (request->deadline <= now) refuse(*request, Outcome::kDeadlineExceeded, late_error(&batch));
    }
  }
}

void Engine::Loop::refuse_all(Outcome outcome, std::string const& error) {
  std::vector<PendingPtr> queued;
  {
    std::lock_guard const lock(mutex_);
    queued = queue_.take_all();
  }
  for (auto& request : queued) refuse(*request, outcome, error);
  for (auto& batch : batches_) {
    if (is_computing(batch)) continue;  // Its rows are here.
    for (auto& request : batch.requests) refuse(*request, outcome, error);
  }
  std::erase_if(batches_, [](Batch const& batch) { return !is_computing(batch); });
}

void Engine::Loop::fail(std::string const& error) {
  base::log(base::LogLevel::kWarning, "serving", fetcher_->rank(), "requests are refused: " + error);
  {
    std::lock_guard const lock(mutex_);
    failure_ = error;
  }
  has_failed_.notify_all();
  refuse_all(Outcome::kUnavailable, error);
}

void Engine::Loop::sleep() {
  auto until = Clock::time_point::max();
  for (auto const& batch : batches_) {
    if (batch.inputs == nullptr) until = std::min(until, batch.keys_known);
    for (auto const& request : batch.requests) {
      if (request->reply) until = std::min(until, request->deadline);
    }
  }
  bool is_connected = true;
  {
    std::lock_guard const lock(mutex_);
    is_connected = failure_.empty();
    until = std::min(until, queue_.first_deadline());
    if (!queue_.empty() && batches_.size() < options_.max_in_flight) {
      until = std::min(until, queue_.oldest().accepted + options_.batch_delay);
    }
  }
  try {
    if (is_connected) fetcher_->wake_on_change([wake_up = wake_up_] { wake_up->ring(); });
  } catch (std::exception const& error) {
    return fail(error.what());
  }
  wake_up_->sleep_until(until);
}

Engine::Engine(std::shared_ptr<ServedModel const> model, std::unique_ptr<RowFetcher> fetcher, EngineOptions options)
    : loop_(std::make_unique<Loop>(std::move(model), std::move(fetcher), std::move(options))) {}
Engine::~Engine() = default;
void Engine::submit(Request request, Clock::time_point deadline, ReplyFunction reply) {
  loop_->submit(std::move(request), deadline, std::move(reply));
}
bool Engine::is_ready() const { return loop_->why_not_ready().empty(); }
std::string Engine::why_not_ready() const { return loop_->why_not_ready(); }
std::shared_ptr<ServedModel const> Engine::model() const { return loop_->model(); }
EngineStatistics Engine::statistics() const { return loop_->statistics(); }
void Engine::add_model(std::shared_ptr<ServedModel const> model, std::vector<embedding::ReadTable> tables) {
  loop_->add_model(std::move(model), std::move(tables));
}
void Engine::switch_to(std::uint64_t number) { loop_->switch_to(number); }
void Engine::wait_for_batches_of(std::uint64_t number) { loop_->wait_for_batches_of(number); }
void Engine::remove_model(std::uint64_t number) { loop_->remove_model(number); }
void Engine::reconnect(std::shared_ptr<ServedModel const> model, std::unique_ptr<RowFetcher> fetcher) {
  loop_->reconnect(std::move(model), std::move(fetcher));
}
bool Engine::wait_for_loss(std::stop_token const& stop) const { return loop_->wait_for_loss(stop); }
void Engine::refuse_new() { loop_->refuse_new(); }
void Engine::drain() { loop_->drain(); }

}  // namespace headway::serving
