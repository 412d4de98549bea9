// SPDX-License-Identifier: Apache-2.0

// Creates the reducing backend (Gloo, NCCL) late, without blocking callers and without reordering their calls.
//
// Idea: the first reduction starts a thread that creates the backend. Calls that arrive meanwhile are queued with the
// thread-local state of their caller. When the backend exists, the same thread runs the queue in order; later calls go
// to the backend directly once the queue is empty. Calls for NCCL are not queued: their callers wait in backend().
//
// Example: calls A and B arrive while the backend is created. The thread starts A; C arrives and is queued behind B,
// because the queue is not empty. After B and C the queue is empty, and D calls the backend in its own thread.
//
// Invariants:
// - A call stays at the front of the queue while it is started, so a later one cannot overtake it. Ranks that call in
//   the same order therefore start their reductions in the same order.
// - Calls, callbacks of futures and the release of tensors run without `mutex`.
// - If creation fails, the group is failed first, then every queued work is refused with the group's failure.
// - At program exit the backend is destroyed in a thread of its own: the destructor of Gloo's group joins its threads.
// Complexity: O(1) per call; one thread per delegate while the backend is created or the queue runs.
// Source: lazy communicator creation, as ProcessGroupNCCL does it at the first collective.

#include "reduction/reduction_delegate.hpp"

#include "runtime/detached_thread.hpp"
#include "runtime/exit_hooks.hpp"

#include <ATen/ThreadLocalState.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace headway::c10d_backend {

namespace {

/// Errors of Python have a traceback after the first paragraph.
std::string first_paragraph(std::string const& text) { return text.substr(0, text.find("\n\n")); }

/// Sets the timeout of a backend. NCCL's group reads its options at each operation and has no setTimeout().
void set_timeout_of(c10d::Backend& backend, std::chrono::milliseconds timeout) {
  if (backend.getBackendName() == "nccl") {
    backend.getBackendOptions()->timeout = timeout;
  } else {
    backend.setTimeout(timeout);
  }
}

}  // namespace

struct ReductionDelegate::State final : ExitHook, std::enable_shared_from_this<State> {
  /// A call that waits for the backend.
  struct Queued {
    c10::intrusive_ptr<DelegatedWork> work;
    Call call;
    at::ThreadLocalState caller;  ///< Modes of the calling thread (gradients, profiler) that the call relies on.
  };

  Factory factory;
  std::mutex mutex;
  std::condition_variable changed;
  bool has_started_creation = false;
  bool is_aborted = false;
  /// Set after the delegate was created; overrides the one in `factory`.
  std::optional<std::chrono::milliseconds> timeout;
  c10::intrusive_ptr<c10d::Backend> backend;
  std::string failure;              ///< Reason why there is no backend and will be none; empty if there may be one.
  std::deque<Queued> queue;         ///< Calls that arrived before the backend existed.
  bool has_creator_thread = false;  ///< True while a thread creates the backend or runs the queue.
  bool is_ending = false;           ///< True while a thread destroys the backend.

  /// Starts the thread that creates the backend, once. Call it with the lock.
  void start_creation(std::shared_ptr<State> const& self, std::function<void(std::string const&)> fail_group);
  void create_backend(std::function<void(std::string const&)> const& fail_group);
  /// Starts all queued calls in order.
  void run_queue(c10d::Backend& reducing);
  void refuse_queue(std::string const& reason);

  // ExitHook: the destructor of Gloo's group joins its threads after all pending work, possibly only at its timeout.
  [[nodiscard]] Order order() const override { return Order::kReductions; }
  void leave() override;
  [[nodiscard]] bool end(Deadline deadline) override;
};

ReductionDelegate::ReductionDelegate(Factory factory, std::weak_ptr<GroupHandle> group)
    : state_(std::make_shared<State>()), watchdog_(std::make_shared<ReductionWatchdog>(std::move(group))) {
  state_->factory = std::move(factory);
}

ReductionDelegate::~ReductionDelegate() {
  if (watchdog_) watchdog_->close();
}

void ReductionDelegate::start(c10::intrusive_ptr<DelegatedWork> const& work, Call call,
                              std::function<void(std::string const&)> fail_group) {
  work->set_watchdog_entry(watchdog_->add(work));
  try {
    start_or_queue(work, std::move(call), std::move(fail_group));
  } catch (std::exception const&) {
    work->refuse(std::current_exception());
    throw;
  }
}

void ReductionDelegate::start_or_queue(c10::intrusive_ptr<DelegatedWork> const& work, Call call,
                                       std::function<void(std::string const&)> fail_group) {
  c10::intrusive_ptr<c10d::Backend> backend;
  {
    std::lock_guard const lock(state_->mutex);
    TORCH_CHECK_WITH(DistBackendError, state_->failure.empty(), "headway: ", state_->failure);
    if (!state_->backend || !state_->queue.empty()) {
      state_->start_creation(state_, std::move(fail_group));
      state_->queue.push_back({work, std::move(call), at::ThreadLocalState()});
      return;
    }
    backend = state_->backend;
  }
  work->start(call(*backend));
}

void ReductionDelegate::State::start_creation(std::shared_ptr<State> const& self,
                                              std::function<void(std::string const&)> fail_group) {
  if (has_started_creation) return;
  // Detached, because it may have to wait for other ranks after this one has ended.
  start_detached("headway_create", [self, fail_group = std::move(fail_group)] {
    self->create_backend(fail_group);
    {
      std::lock_guard const lock(self->mutex);
      self->has_creator_thread = false;
    }
    self->changed.notify_all();
  });
  // Set last, because starting may throw. The new thread cannot clear has_creator_thread before, without the lock.
  has_started_creation = has_creator_thread = true;
}

void ReductionDelegate::State::create_backend(std::function<void(std::string const&)> const& fail_group) {
  try {
    auto const created = factory();
    bool is_aborted_already = false;
    {
      std::lock_guard const lock(mutex);
      if (timeout) set_timeout_of(*created, *timeout);
      backend = created;
      is_aborted_already = is_aborted;
    }
    if (is_aborted_already) created->abort();
    changed.notify_all();
    run_queue(*created);
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

void ReductionDelegate::State::run_queue(c10d::Backend& reducing) {
  std::unique_lock lock(mutex);
  while (!queue.empty()) {
    // The call stays in the queue while it is started, so that a later one does not overtake it.
    auto& next = queue.front();
    lock.unlock();
    try {
      at::ThreadLocalStateGuard const as_caller(next.caller);
      next.work->start(next.call(reducing));
    } catch (std::exception const&) {
      next.work->refuse(std::current_exception());
    }
    lock.lock();
    std::optional<Queued> started(std::move(queue.front()));
    queue.pop_front();
    lock.unlock();
    started.reset();  // Freed without the lock: it owns tensors, perhaps Python's.
    lock.lock();
  }
}

void ReductionDelegate::State::refuse_queue(std::string const& reason) {
  std::deque<Queued> refused;
  {
    std::lock_guard const lock(mutex);
    refused.swap(queue);
  }
  // Without the lock, because callbacks of futures run here.
  for (auto& queued : refused) queued.work->refuse_for(reason);
}

c10::intrusive_ptr<c10d::Backend> ReductionDelegate::backend(std::chrono::milliseconds timeout) {
  std::unique_lock lock(state_->mutex);
  state_->start_creation(state_, [](std::string const&) {});
  state_->changed.wait_for(lock, timeout, [&] { return state_->backend || !state_->failure.empty(); });
  TORCH_CHECK_WITH(DistBackendError, state_->failure.empty(), "headway: ", state_->failure);
  return state_->backend;
}

void ReductionDelegate::set_timeout(std::chrono::milliseconds timeout) {
  std::lock_guard const lock(state_->mutex);
  state_->timeout = timeout;
  if (state_->backend) set_timeout_of(*state_->backend, timeout);
}

void ReductionDelegate::abort() {
  c10::intrusive_ptr<c10d::Backend> backend;
  {
    std::lock_guard const lock(state_->mutex);
    state_->is_aborted = true;
    backend = state_->backend;
  }
  if (backend) backend->abort();
}

void ReductionDelegate::shutdown() {
  c10::intrusive_ptr<c10d::Backend> backend;
  {
    std::lock_guard const lock(state_->mutex);
    backend = state_->backend;
  }
  if (backend) backend->shutdown();
}

void ReductionDelegate::end_with_program() {
  register_exit_hook(state_);
  register_exit_hook(watchdog_);
}

void ReductionDelegate::State::leave() {
  keep_forever(shared_from_this());  // It holds what Python owns, and the thread below may drop the last reference.
  auto const ending = std::make_shared<c10::intrusive_ptr<c10d::Backend>>();
  {
    std::lock_guard const lock(mutex);
    failure = "the program ends";
    *ending = std::move(backend);
    is_ending = *ending != nullptr;
  }
  changed.notify_all();  // For those in backend().
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
    keep_forever(ending);  // No thread could be started. The backend is leaked, so that the exit does not block.
  }
}

bool ReductionDelegate::State::end(Deadline deadline) {
  std::unique_lock lock(mutex);
  return changed.wait_until(lock, deadline, [this] { return !has_creator_thread && !is_ending; });
}

void ReductionDelegate::leak() {
  new std::shared_ptr<State>(std::move(state_));
  new std::shared_ptr<ReductionWatchdog>(std::move(watchdog_));
}

}  // namespace headway::c10d_backend
