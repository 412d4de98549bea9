#include "reducer.hpp"

#include "detached_thread.hpp"
#include "live_parts.hpp"

#include <ATen/ThreadLocalState.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace headway::c10d_backend {

namespace {

/// An error of Python has a traceback behind it.
std::string first_paragraph(std::string const& text) { return text.substr(0, text.find("\n\n")); }

/// NCCL's group reads its options for each operation and has no setTimeout() of its own.
void set_timeout_of(c10d::Backend& backend, std::chrono::milliseconds timeout) {
  if (backend.getBackendName() == "nccl") {
    backend.getBackendOptions()->timeout = timeout;
  } else {
    backend.setTimeout(timeout);
  }
}

}  // namespace

struct Reducer::State final : LivePart, std::enable_shared_from_this<State> {
  struct Queued {
    c10::intrusive_ptr<DelegatedWork> work;
    Call call;
    at::ThreadLocalState caller;  ///< Modes of the calling thread (gradients, profiler) that the call relies on.
  };

  Make make;
  std::mutex mutex;
  std::condition_variable changed;
  bool is_making = false;
  bool is_aborted = false;
  std::optional<std::chrono::milliseconds> timeout;  ///< Set since the reducer was made, and newer than `make`'s.
  c10::intrusive_ptr<c10d::Backend> backend;
  std::string failure;
  std::deque<Queued> queue;  ///< Calls that came before the backend was there.
  bool has_maker = false;    ///< A thread that makes the backend, or starts the queue.
  bool is_ending = false;    ///< A thread ends the backend.

  void begin_making(std::shared_ptr<State> const& self, std::function<void(std::string const&)> fail_group);
  void make_backend(std::function<void(std::string const&)> const& fail_group);
  void run_queue();
  void refuse_queue(std::string const& reason);

  // LivePart: the destructor of Gloo's group joins its threads, after all that is pending, perhaps until its timeout.
  [[nodiscard]] Order order() const override { return Order::kReducer; }
  void leave() override;
  [[nodiscard]] bool end(Deadline deadline) override;
};

Reducer::Reducer(Make make, std::weak_ptr<GroupHandle> group)
    : state_(std::make_shared<State>()), watch_(std::make_shared<ReductionWatch>(std::move(group))) {
  state_->make = std::move(make);
}

Reducer::~Reducer() {
  if (watch_) watch_->close();
}

void Reducer::start(c10::intrusive_ptr<DelegatedWork> const& work, Call call,
                    std::function<void(std::string const&)> fail_group) {
  work->be_watched(watch_->enter(work));
  try {
    start_or_queue(work, std::move(call), std::move(fail_group));
  } catch (std::exception const&) {
    work->refuse(std::current_exception());
    throw;
  }
}

void Reducer::start_or_queue(c10::intrusive_ptr<DelegatedWork> const& work, Call call,
                             std::function<void(std::string const&)> fail_group) {
  c10::intrusive_ptr<c10d::Backend> backend;
  {
    std::lock_guard const lock(state_->mutex);
    TORCH_CHECK_WITH(DistBackendError, state_->failure.empty(), "headway: ", state_->failure);
    if (!state_->backend || !state_->queue.empty()) {
      state_->begin_making(state_, std::move(fail_group));
      state_->queue.push_back({work, std::move(call), at::ThreadLocalState()});
      return;
    }
    backend = state_->backend;
  }
  work->start(call(*backend));
}

void Reducer::State::begin_making(std::shared_ptr<State> const& self,
                                  std::function<void(std::string const&)> fail_group) {
  if (is_making) return;
  // It may have to wait for other ranks longer than this one wants to live.
  start_detached("headway_make", [self, fail_group = std::move(fail_group)] {
    self->make_backend(fail_group);
    {
      std::lock_guard const lock(self->mutex);
      self->has_maker = false;
    }
    self->changed.notify_all();
  });
  is_making = has_maker = true;  // The thread waits for the lock.
}

void Reducer::State::make_backend(std::function<void(std::string const&)> const& fail_group) {
  try {
    auto made = make();
    {
      std::lock_guard const lock(mutex);
      if (timeout) set_timeout_of(*made, *timeout);
      backend = std::move(made);
      if (is_aborted) backend->abort();
    }
    changed.notify_all();
    run_queue();
  } catch (std::exception const& error) {
    std::string const reason = "the group that reduces could not be made: " + first_paragraph(error.what());
    {
      std::lock_guard const lock(mutex);
      failure = reason;
    }
    changed.notify_all();
    fail_group(reason);
    refuse_queue(reason);
  }
}

void Reducer::State::run_queue() {
  std::unique_lock lock(mutex);
  auto const reducing = backend;
  while (!queue.empty()) {
    // It stays in the queue while it is started, so that a later call does not overtake it.
    auto& next = queue.front();
    lock.unlock();
    try {
      at::ThreadLocalStateGuard const as_caller(next.caller);
      next.work->start(next.call(*reducing));
    } catch (std::exception const&) {
      next.work->refuse(std::current_exception());
    }
    lock.lock();
    std::optional<Queued> started(std::move(queue.front()));
    queue.pop_front();
    lock.unlock();
    started.reset();  // Without the lock: it owns tensors, perhaps Python's.
    lock.lock();
  }
}

void Reducer::State::refuse_queue(std::string const& reason) {
  std::deque<Queued> refused;
  {
    std::lock_guard const lock(mutex);
    refused.swap(queue);
  }
  for (auto& queued : refused) queued.work->refuse_for(reason);  // Without the lock: callbacks of futures run here.
}

c10::intrusive_ptr<c10d::Backend> Reducer::backend(std::chrono::milliseconds timeout) {
  std::unique_lock lock(state_->mutex);
  state_->begin_making(state_, [](std::string const&) {});
  state_->changed.wait_for(lock, timeout, [&] { return state_->backend || !state_->failure.empty(); });
  TORCH_CHECK_WITH(DistBackendError, state_->failure.empty(), "headway: ", state_->failure);
  return state_->backend;
}

void Reducer::set_timeout(std::chrono::milliseconds timeout) {
  std::lock_guard const lock(state_->mutex);
  state_->timeout = timeout;
  if (state_->backend) set_timeout_of(*state_->backend, timeout);
}

void Reducer::abort() {
  c10::intrusive_ptr<c10d::Backend> backend;
  {
    std::lock_guard const lock(state_->mutex);
    state_->is_aborted = true;
    backend = state_->backend;
  }
  if (backend) backend->abort();
}

void Reducer::shutdown() {
  c10::intrusive_ptr<c10d::Backend> backend;
  {
    std::lock_guard const lock(state_->mutex);
    backend = state_->backend;
  }
  if (backend) backend->shutdown();
}

void Reducer::end_with_program() {
  add_live_part(state_);
  add_live_part(watch_);
}

void Reducer::State::leave() {
  keep_forever(shared_from_this());  // It holds what Python owns, and the thread below may be the last to let go of it.
  auto const ending = std::make_shared<c10::intrusive_ptr<c10d::Backend>>();
  {
    std::lock_guard const lock(mutex);
    failure = "the program ends";
    *ending = std::move(backend);
    is_ending = *ending != nullptr;
  }
  if (!*ending) return;
  try {
    start_detached("headway_end", [self = shared_from_this(), ending] {
      ending->reset();
      {
        std::lock_guard const lock(self->mutex);
        self->is_ending = false;
      }
      self->changed.notify_all();
    });
  } catch (std::exception const&) {
    keep_forever(ending);  // There can be no thread to wait in.
  }
}

bool Reducer::State::end(Deadline deadline) {
  std::unique_lock lock(mutex);
  return changed.wait_until(lock, deadline, [this] { return !has_maker && !is_ending; });
}

void Reducer::leak() {
  new std::shared_ptr<State>(std::move(state_));
  new std::shared_ptr<ReductionWatch>(std::move(watch_));
}

}  // namespace headway::c10d_backend
