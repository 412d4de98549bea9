// SPDX-License-Identifier: Apache-2.0

// A reduction that another backend does for a headway group.
//
// Idea: the work exists before the delegate does, so it has a future of its own. start() binds the delegate's work
// when that runs; its future then completes this one. Errors flow both ways. A failure of the delegate fails the
// headway group, and a failure of the group fails the work, through the watchdog (reduction_watchdog.cpp) or a caller
// that waits.
//
// Example: rank 2 is killed during an all_reduce. On rank 0, Gloo notices a closed connection first; the group needs a
// little longer to see that rank 2 is gone. fail_group() waits for that, at most 1 s, so that callers read "lost a
// peer: rank 2 ..." instead of Gloo's text, which names only an address.
//
// Invariants:
// - The first error is kept, and every caller gets that one (keep_error).
// - The future is settled once. Its callbacks run without any lock of this class.
// - The epilogue, which copies temporaries to the caller's tensors, runs once, in whichever thread first sees the
//   reduction done.

#include "reduction/delegated_work.hpp"

#include "runtime/errors.hpp"
#include "runtime/interpreter.hpp"

#include <algorithm>
#include <mutex>
#include <thread>

namespace headway::c10d_backend {

namespace {

using Clock = std::chrono::steady_clock;

Clock::time_point deadline_after(std::chrono::milliseconds timeout) {
  return timeout == kNoTimeout ? Clock::time_point::max() : comm::deadline_after(timeout);
}

/// Message of an exception, without torch's C++ backtrace.
std::string text_of(std::exception_ptr const& error) {
  try {
    std::rethrow_exception(error);
  } catch (c10::Error const& caught) {
    return caught.what_without_backtrace();
  } catch (std::exception const& caught) {
    return caught.what();
  }
}

/// Interval of the checks whether the group has failed by itself.
constexpr std::chrono::milliseconds kHealthPollTime{2};

}  // namespace

std::optional<comm::Status> fail_group_for_delegate(std::weak_ptr<GroupHandle> const& group, std::string const& text,
                                                    std::chrono::milliseconds patience) {
  auto const deadline = Clock::now() + patience;
  for (;; std::this_thread::sleep_for(kHealthPollTime)) {
    // Released while this thread sleeps, so that the group can be destroyed meanwhile.
    auto const alive = group.lock();
    if (!alive) return std::nullopt;
    if (auto health = alive->group().monitor().health(); !health.ok()) return health;
    if (Clock::now() < deadline) continue;
    alive->abort(text);
    return std::nullopt;
  }
}

DelegatedWork::DelegatedWork(OpInfo const& op, int rank, std::vector<at::Tensor> const& inputs,
                             std::weak_ptr<GroupHandle> group, std::optional<Epilogue> epilogue)
    : Work(rank, op.type, profiler_title(op), inputs_for_profiler(inputs)),
      op_(op),
      is_on_cpu_(inputs.at(0).device().is_cpu()),
      group_(std::move(group)),
      epilogue_(std::move(epilogue)),
      future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {
  auto const alive = group_.lock();
  if (alive && alive->hooks().wants_completions()) {
    alive->hooks().started(op_.key, [] { return std::optional<bool>(); });  // settle() always reports.
  }
}

void DelegatedWork::set_watchdog_entry(ReductionWatchdog::Entry entry) {
  std::lock_guard const lock(mutex_);
  if (!is_settled_) watchdog_entry_.swap(entry);
}

void DelegatedWork::start(c10::intrusive_ptr<c10d::Work> inner) {
  auto const self = c10::intrusive_ptr<DelegatedWork>::reclaim_copy(this);
  inner->getFuture()->addCallback([self](c10::ivalue::Future& reduced) { self->on_reduced(reduced); });
  {
    std::lock_guard const lock(mutex_);
    inner_ = std::move(inner);
  }
  has_started_.notify_all();
}

void DelegatedWork::on_reduced(c10::ivalue::Future& reduced) {
  try {
    if (reduced.hasError()) {
      auto const reason = text_of(reduced.exception_ptr());
      std::rethrow_exception(keep_error([&] { return fail_group(reason); }));
    }
    run_epilogue_once();
    settle(nullptr, epilogue_ ? c10::IValue(epilogue_->results) : reduced.value());
  } catch (std::exception const&) {
    settle(std::current_exception(), {});
  }
}

void DelegatedWork::settle(std::exception_ptr const& error, c10::IValue value) {
  ReductionWatchdog::Entry entry;  // Released after the lock.
  {
    std::lock_guard const lock(mutex_);
    if (std::exchange(is_settled_, true)) return;
    entry.swap(watchdog_entry_);
  }
  if (auto const alive = group_.lock()) {
    alive->hooks().completed(op_.key, !error,
                             std::chrono::duration<float, std::milli>(Clock::now() - created_).count());
  }
  error ? future_->setError(error) : future_->markCompleted(std::move(value));
  if (recordFunctionEndCallback_) recordFunctionEndCallback_();
}

void DelegatedWork::fail_with(GroupHandle const& group) {
  auto const error =
      keep_error([&] { return make_error(op_.name, group.group().monitor().health(), group.failure_note()); });
  has_started_.notify_all();
  settle(error, {});
}

template <typename Make>
std::exception_ptr DelegatedWork::keep_error(Make&& make) {
  std::call_once(error_once_, [&] {
    auto error = make();
    std::lock_guard const lock(mutex_);
    exception_ = std::move(error);
  });
  return exception();
}

void DelegatedWork::run_epilogue_once() {
  if (!epilogue_) return;
  std::call_once(epilogue_once_, [this] {
    epilogue_->run();
    epilogue_->run = nullptr;  // Frees the temporaries.
  });
}

void DelegatedWork::refuse(std::exception_ptr error) {
  keep_error([&] { return error; });
  has_started_.notify_all();
  settle(error, {});
}

void DelegatedWork::refuse_for(std::string const& reason) {
  auto const alive = group_.lock();
  if (alive && !alive->group().monitor().health().ok()) return fail_with(*alive);
  refuse(std::make_exception_ptr(
      c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, "headway: " + reason)));
}

c10::intrusive_ptr<c10d::Work> DelegatedWork::inner_if_started() const {
  std::lock_guard const lock(mutex_);
  return inner_;
}

c10::intrusive_ptr<c10d::Work> DelegatedWork::wait_for_inner(Clock::time_point deadline) {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      auto const is_known = [&] { return inner_ || exception_; };
      if (has_started_.wait_until(lock, std::min(deadline, Clock::now() + kSignalSlice), is_known)) {
        if (exception_) std::rethrow_exception(exception_);
        return inner_;
      }
    }
    raise_pending_signals();
    throw_if_group_failed();
    TORCH_CHECK_WITH(DistBackendError, Clock::now() < deadline, op_.name,
                     " Timed out : the group that reduces for it is still being made");
  }
}

bool DelegatedWork::isCompleted() {
  if (exception()) return true;
  auto const inner = inner_if_started();
  // A failed reduction is complete only when its error is known.
  if (!inner || !inner->isCompleted() || !inner->isSuccess()) return false;
  run_epilogue_once();
  return true;
}

bool DelegatedWork::isSuccess() const {
  auto const inner = inner_if_started();
  return inner && inner->isSuccess() && !exception();
}

std::exception_ptr DelegatedWork::exception() const {
  std::lock_guard const lock(mutex_);
  return exception_;
}

std::vector<at::Tensor> DelegatedWork::result() {
  if (epilogue_) return epilogue_->results;
  return wait_for_inner(Clock::time_point::max())->result();
}

void DelegatedWork::synchronize() { wait_for_inner(Clock::time_point::max())->synchronize(); }

void DelegatedWork::abort() { abort_if_alive(group_, std::string(op_.name) + " was aborted"); }

float DelegatedWork::getDuration() const {
  auto const inner = inner_if_started();
  TORCH_CHECK(inner, op_.name, " has not started yet");
  return inner->getDuration();
}

std::uint64_t DelegatedWork::getSequencenumber() const { return op_.seq; }

bool DelegatedWork::wait(std::chrono::milliseconds timeout) {
  auto const deadline = deadline_after(timeout);
  auto const inner = wait_for_inner(deadline);
  try {
    if (is_on_cpu_) wait_in_slices(*inner, deadline);
    inner->wait(is_on_cpu_ ? kNoTimeout : timeout);
    run_epilogue_once();
    return true;
  } catch (pybind11::error_already_set const&) {
    throw;  // Ctrl-C.
  } catch (std::exception const&) {
    if (is_on_cpu_ && !inner->isCompleted()) throw;  // The caller's timeout ran out, not the reduction's.
    auto const reason = text_of(std::current_exception());
    std::rethrow_exception(keep_error([&] { return fail_group(reason); }));
  }
}

void DelegatedWork::wait_in_slices(c10d::Work& inner, Clock::time_point deadline) {
  while (!inner.isCompleted()) {
    auto const now = Clock::now();
    auto const slice = std::min<Clock::duration>(kSignalSlice, deadline - now);
    try {
      // A wait of zero would mean no limit.
      inner.wait(std::max(std::chrono::milliseconds(1), std::chrono::duration_cast<std::chrono::milliseconds>(slice)));
    } catch (c10::Error const&) {
      if (inner.isCompleted()) return;
      if (Clock::now() >= deadline) throw;
      raise_pending_signals();
      throw_if_group_failed();
    }
  }
}

void DelegatedWork::throw_if_group_failed() {
  auto const alive = group_.lock();
  if (!alive || alive->group().monitor().health().ok()) return;
  fail_with(*alive);
  std::rethrow_exception(exception());
}

std::exception_ptr DelegatedWork::fail_group(std::string const& reason) {
  // A reduction that ran out of its own time is a failure by itself, so the group gets no time to explain it.
  auto const patience = Clock::now() - created_ < op_.timeout ? kDetectionTime : std::chrono::seconds(0);
  std::string const text = std::string(op_.name) + " failed in the group that reduces for it: " + reason;
  if (auto const failure = fail_group_for_delegate(group_, text, patience)) {
    auto const alive = group_.lock();
    return make_error(op_.name, *failure, alive ? alive->failure_note() : "");
  }
  return std::make_exception_ptr(c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, text));
}

}  // namespace headway::c10d_backend
