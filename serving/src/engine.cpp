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
// Threads: requests come through Admission, which has a lock of its own. `mutex_` guards work for the loop alone.
// Complexity: a round looks at all batches in flight, of which there are a few, and all queued requests if one is late.

#include "headway/serving/engine.hpp"

#include "admission.hpp"
#include "batch_inputs.hpp"
#include "dense_runner.hpp"
#include "headway/base/log.hpp"
#include "headway/base/status.hpp"
#include "wake_up.hpp"

#include <future>
#include <list>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace headway::serving {

namespace {

/// Requests that are served together.
struct Batch {
  BatchRecord record{};
  std::shared_ptr<ServedModel const> model{};
  std::vector<PendingPtr> requests{};
  std::shared_ptr<BatchInputs> inputs{};       ///< Set when the keys are sent; shared with the dense run.
  std::unique_ptr<RowFetcher::Fetch> fetch{};  ///< Until all rows are here.
  Clock::time_point keys_known{};              ///< Not before this time.
  bool is_forced = false;                      ///< A peer waits for it, so it is fetched even without requests.
};

/// Does the dense part compute the batch, or will next?
bool is_computing(Batch const& batch) { return batch.inputs != nullptr && batch.fetch == nullptr; }

void call(ReplyFunction& reply, Reply&& with) {
  if (reply) std::exchange(reply, nullptr)(std::move(with));
}

/// Rows [first, first + count) of an output.
OutputRows slice(OutputRows const& all, std::size_t first, std::size_t count) {
  auto const width = static_cast<std::ptrdiff_t>(
      std::accumulate(all.row_shape.begin(), all.row_shape.end(), std::int64_t{1}, std::multiplies<>()));
  auto const begin = all.values.begin() + static_cast<std::ptrdiff_t>(first) * width;
  return {.values = {begin, begin + static_cast<std::ptrdiff_t>(count) * width}, .row_shape = all.row_shape};
}

}  // namespace

class Engine::Loop {
 public:
  Loop(std::shared_ptr<ServedModel const> model, std::unique_ptr<RowFetcher> fetcher, EngineOptions options)
      : options_(std::move(options)),
        admission_(model, options_),
        fetcher_(std::move(fetcher)),
        runner_([wake_up = wake_up_] { wake_up->ring(); }) {
    base::expects(options_.max_rows > 0 && options_.max_in_flight > 0, "max_rows and max_in_flight must be above 0");
    base::expects(options_.batch_delay.count() >= 0, "batch_delay must not be negative");
    models_.emplace(model->manifest().number, model);
    thread_ = std::jthread([this] { run(); });
  }
  ~Loop() { drain(); }
  Loop(Loop const&) = delete;
  Loop& operator=(Loop const&) = delete;

  [[nodiscard]] Admission& admission() { return admission_; }
  [[nodiscard]] Admission const& admission() const { return admission_; }
  void submit(Request request, Clock::time_point deadline, ReplyFunction reply);
  void refuse_new();
  void drain();
  void reconnect(std::shared_ptr<ServedModel const> model, std::unique_ptr<RowFetcher> fetcher);
  void add_model(std::shared_ptr<ServedModel const> model, std::vector<embedding::ReadTable> tables);
  [[nodiscard]] bool plans_switches();
  [[nodiscard]] std::uint64_t hold_for_switch();
  [[nodiscard]] bool plan_switch(std::uint64_t number, std::uint64_t first);
  void cancel_switch();
  void switch_to(std::uint64_t number);
  void wait_for_batches_of(std::uint64_t number);
  void remove_model(std::uint64_t number);

 private:
  void run() noexcept;
  /// Goes once through everything that can be done. @returns whether anything was
  bool advance();
  void sleep();

  /// Runs `work` on the thread of the loop, and waits for it. @throws what it throws
  /// @returns what it returns
  template <class Work>
  std::invoke_result_t<Work> run_on_loop(Work work) {
    auto const task = std::make_shared<std::packaged_task<std::invoke_result_t<Work>()>>(std::move(work));
    auto done = task->get_future();
    {
      std::lock_guard const lock(mutex_);
      base::expects(!is_over_, "the engine has ended");
      work_.emplace_back([task] { (*task)(); });
    }
    wake_up_->ring();
    return done.get();
  }
  void do_work();
  /// Ends the loop.
  void end() {
    {
      std::lock_guard const lock(mutex_);
      is_over_ = true;
    }
    do_work();  // Somebody may wait for it.
  }
  bool begin_batch();
  [[nodiscard]] bool is_preparing() const;
  bool send_keys();
  /// Gives a batch the version that its fetch has to read. Requests for which it has no room go to a later batch.
  /// @returns the sizes of the batch
  Sizes set_version(Batch& batch);
  bool take_rows();
  bool take_outputs();
  void finish(Batch& batch, DenseRun& run);
  void expire();
  void refuse(PendingRequest& request, Outcome outcome, std::string error);
  void refuse_too_large(PendingRequest& request);
  void refuse_all(Outcome outcome, std::string const& error);
  void fail(std::string const& error);
  [[nodiscard]] std::string late_error(Batch const* batch) const;

  EngineOptions const options_;
  std::shared_ptr<WakeUp> const wake_up_ = std::make_shared<WakeUp>();
  Admission admission_;
  std::mutex mutex_;
  std::vector<std::function<void()>> work_;  ///< For the loop; see run_on_loop().
  bool is_over_ = false;

  // Only the loop uses the rest.
  std::unique_ptr<RowFetcher> fetcher_;
  bool is_connected_ = true;                                            ///< The group of the fetcher has not failed.
  std::map<std::uint64_t, std::shared_ptr<ServedModel const>> models_;  ///< Versions of the fetcher, by number.
  std::list<Batch> batches_;                                            ///< In flight, oldest first.
  std::uint64_t num_batches_ = 0;
  DenseRunner runner_;
  std::jthread thread_;
};

void Engine::Loop::submit(Request request, Clock::time_point deadline, ReplyFunction reply) {
  auto pending = std::make_unique<PendingRequest>();
  pending->request = std::move(request);
  pending->accepted = Clock::now();
  pending->deadline = deadline;
  pending->reply = std::move(reply);
  auto refusal = admission_.accept(pending);
  if (pending == nullptr) return wake_up_->ring();
  call(pending->reply, std::move(refusal));
}

void Engine::Loop::refuse_new() {
  admission_.refuse_new();
  wake_up_->ring();
}

void Engine::Loop::drain() {
  refuse_new();
  if (thread_.joinable()) thread_.join();
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
  bool has_moved = take_outputs();
  // First, since peers that have left already are no loss.
  if (admission_.has_ended() && batches_.empty() && (!is_connected_ || fetcher_->leave())) {
    end();
    return true;
  }
  if (is_connected_) {
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

void Engine::Loop::add_model(std::shared_ptr<ServedModel const> model, std::vector<embedding::ReadTable> tables) {
  run_on_loop([&] {
    auto const number = model->manifest().number;
    fetcher_->add_version(number, std::move(tables));
    models_.emplace(number, std::move(model));
  });
}

bool Engine::Loop::plans_switches() {
  return run_on_loop([&] { return fetcher_->plans_switches(); });
}

std::uint64_t Engine::Loop::hold_for_switch() {
  return run_on_loop([&] { return fetcher_->hold_for_switch(options_.max_in_flight); });
}

bool Engine::Loop::plan_switch(std::uint64_t number, std::uint64_t first) {
  return run_on_loop([&] { return fetcher_->plan_switch(number, first); });
}

void Engine::Loop::cancel_switch() {
  run_on_loop([&] { fetcher_->cancel_switch(); });
}

void Engine::Loop::switch_to(std::uint64_t number) {
  run_on_loop([&] {
    auto const found = models_.find(number);
    base::expects(found != models_.end(), "switch_to: the version was not added");
    admission_.set_model(found->second);
  });
}

void Engine::Loop::wait_for_batches_of(std::uint64_t number) {
  auto const is_there = [&] {
    return (is_connected_ && !fetcher_->has_left(number)) ||
           std::ranges::any_of(batches_, [&](Batch const& batch) { return batch.model->manifest().number == number; });
  };
  while (run_on_loop(is_there)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void Engine::Loop::remove_model(std::uint64_t number) {
  run_on_loop([&] {
    fetcher_->remove_version(number);
    models_.erase(number);
  });
}

void Engine::Loop::reconnect(std::shared_ptr<ServedModel const> model, std::unique_ptr<RowFetcher> fetcher) {
  run_on_loop([&] {
    base::expects(!is_connected_, "reconnect: no rank was lost");
    fetcher_ = std::move(fetcher);
    models_ = {{model->manifest().number, model}};
    is_connected_ = true;
    admission_.recover(std::move(model));
  });
}

bool Engine::Loop::is_preparing() const {
  return std::ranges::any_of(batches_, [](Batch const& batch) { return batch.inputs == nullptr; });
}

bool Engine::Loop::begin_batch() {
  for (auto& request : admission_.take_too_large()) {
    refuse_too_large(*request);
  }
  if (batches_.size() >= options_.max_in_flight) return false;
  bool const is_forced = fetcher_->must_begin() && !is_preparing();
  auto const now = Clock::now();
  auto [model, requests] = admission_.take_batch(now, is_forced);
  if (model == nullptr) return false;
  Batch batch{.record = {.number = num_batches_++, .in_flight = batches_.size() + 1, .taken = now},
              .model = std::move(model),
              .requests = std::move(requests),
              .keys_known = now,
              .is_forced = is_forced};
  if (options_.delay_before_keys && !batch.requests.empty()) {
    batch.keys_known += std::chrono::duration_cast<Clock::duration>(options_.delay_before_keys());
  }
  batches_.push_back(std::move(batch));
  return true;
}

bool Engine::Loop::send_keys() {
  bool has_sent = false;
  for (auto batch = batches_.begin(); batch != batches_.end();) {
    if (batch->inputs != nullptr || Clock::now() < batch->keys_known || !fetcher_->may_begin()) {
      ++batch;
      continue;
    }
    std::erase_if(batch->requests, [](PendingPtr const& each) { return !each->reply; });  // They were late.
    has_sent = true;
    if (batch->requests.empty() && !batch->is_forced) {
      batch = batches_.erase(batch);
      continue;
    }
    batch->record.fetch_began = Clock::now();
    auto const sizes = set_version(*batch);
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

Sizes Engine::Loop::set_version(Batch& batch) {
  auto const wanted = batch.model->manifest().number;
  auto const number = fetcher_->version_of_next(wanted);
  if (number != wanted) batch.model = models_.at(number);
  auto const room = batch.model->room();
  Sizes sizes;
  std::vector<PendingPtr> kept, later;
  for (auto& request : batch.requests) {
    auto with_this = sizes;
    with_this += request->sizes;
    if (!room.holds(request->sizes)) {
      refuse_too_large(*request);
    } else if (later.empty() && room.holds(with_this)) {
      sizes = with_this;
      kept.push_back(std::move(request));
    } else {
      later.push_back(std::move(request));
    }
  }
  batch.requests = std::move(kept);
  admission_.put_back(std::move(later));
  return sizes;
}

void Engine::Loop::refuse_too_large(PendingRequest& request) {
  refuse(request, Outcome::kInvalid, "the new version of the model has no bucket for the request");
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
      batch->record.fetched = Clock::now();
      batch->record.arrivals = batch->fetch->arrivals();
      DenseRun run{.batch = batch->record.number, .model = batch->model->dense(), .part = batch->inputs->part()};
      run.inputs = batch->inputs->take_rows(*batch->fetch);
      run.memory = batch->inputs;
      batch->fetch = nullptr;
      batch->record.handed_over = Clock::now();
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
    auto const batch =
        std::ranges::find_if(batches_, [&](Batch const& each) { return each.record.number == run.batch; });
    if (batch == batches_.end()) continue;  // The group failed meanwhile.
    try {
      finish(*batch, run);
    } catch (std::exception const& error) {
      for (auto& request : batch->requests) refuse(*request, Outcome::kFailed, error.what());
    }
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
  auto& record = batch.record;
  for (auto& request : batch.requests) {
    if (!request->reply) continue;
    Reply reply{.version = manifest.version, .num_items = request->sizes.items};
    for (auto const& output : run.outputs) {
      reply.outputs.push_back(slice(output, request->first_item, request->sizes.items));
    }
    call(request->reply, std::move(reply));
    record.accepted.push_back(request->accepted);
  }
  record.items = batch.inputs->sizes().items;
  record.dense_began = run.began;
  record.dense_ended = run.ended;
  record.replied = Clock::now();
  admission_.add(record, batch.requests);
  if (options_.on_batch) options_.on_batch(record);
}

void Engine::Loop::refuse(PendingRequest& request, Outcome outcome, std::string error) {
  if (request.reply) call(request.reply, admission_.refuse_as(outcome, std::move(error)));
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
  for (auto& request : admission_.take_late(now)) refuse(*request, Outcome::kDeadlineExceeded, late_error(nullptr));
  for (auto& batch : batches_) {
    for (auto& request : batch.requests) {
      if (request->deadline <= now) refuse(*request, Outcome::kDeadlineExceeded, late_error(&batch));
    }
  }
}

void Engine::Loop::refuse_all(Outcome outcome, std::string const& error) {
  for (auto& request : admission_.take_all()) refuse(*request, outcome, error);
  for (auto& batch : batches_) {
    if (is_computing(batch)) continue;  // Its rows are here.
    for (auto& request : batch.requests) refuse(*request, outcome, error);
  }
  std::erase_if(batches_, [](Batch const& batch) { return !is_computing(batch); });
}

void Engine::Loop::fail(std::string const& error) {
  base::log(base::LogLevel::kWarning, "serving", fetcher_->rank(), "requests are refused: " + error);
  if (is_connected_) fetcher_->abort(error);  // Peers would wait for this rank.
  is_connected_ = false;
  admission_.fail(error);
  refuse_all(Outcome::kUnavailable, error);
}

void Engine::Loop::sleep() {
  auto until = admission_.next_event(batches_.size() < options_.max_in_flight);
  for (auto const& batch : batches_) {
    if (batch.inputs == nullptr && fetcher_->may_begin()) until = std::min(until, batch.keys_known);
    for (auto const& request : batch.requests) {
      if (request->reply) until = std::min(until, request->deadline);
    }
  }
  try {
    if (is_connected_) fetcher_->wake_on_change([wake_up = wake_up_] { wake_up->ring(); });
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
bool Engine::is_ready() const { return why_not_ready().empty(); }
std::string Engine::why_not_ready() const { return loop_->admission().why_not_ready(); }
std::shared_ptr<ServedModel const> Engine::model() const { return loop_->admission().model(); }
EngineStatistics Engine::statistics() const { return loop_->admission().statistics(); }
void Engine::add_model(std::shared_ptr<ServedModel const> model, std::vector<embedding::ReadTable> tables) {
  loop_->add_model(std::move(model), std::move(tables));
}
bool Engine::plans_switches() const { return loop_->plans_switches(); }
std::uint64_t Engine::hold_for_switch() { return loop_->hold_for_switch(); }
bool Engine::plan_switch(std::uint64_t number, std::uint64_t first) { return loop_->plan_switch(number, first); }
void Engine::cancel_switch() { loop_->cancel_switch(); }
void Engine::count_refused_version() { loop_->admission().count_refused_version(); }
void Engine::switch_to(std::uint64_t number) { loop_->switch_to(number); }
void Engine::wait_for_batches_of(std::uint64_t number) { loop_->wait_for_batches_of(number); }
void Engine::remove_model(std::uint64_t number) { loop_->remove_model(number); }
void Engine::reconnect(std::shared_ptr<ServedModel const> model, std::unique_ptr<RowFetcher> fetcher) {
  loop_->reconnect(std::move(model), std::move(fetcher));
}
bool Engine::wait_for_loss(std::stop_token const& stop) const { return loop_->admission().wait_for_failure(stop); }
void Engine::refuse_new() { loop_->refuse_new(); }
void Engine::drain() { loop_->drain(); }

}  // namespace headway::serving
