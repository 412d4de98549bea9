#include "delegated_work.hpp"

#include "errors.hpp"
#include "pending_signals.hpp"
#include "released_gil.hpp"

#include <algorithm>
#include <mutex>
#include <thread>

namespace headway::c10d_backend {

namespace {

using Clock = std::chrono::steady_clock;

Clock::time_point deadline_after(std::chrono::milliseconds timeout) {
  return timeout == kNoTimeout ? Clock::time_point::max() : Clock::now() + timeout;
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

std::optional<comm::Status> fail_by_symptom(std::weak_ptr<GroupHandle> const& group, std::string const& text,
                                            std::chrono::milliseconds patience) {
  auto const deadline = Clock::now() + patience;
  for (;; std::this_thread::sleep_for(kHealthPollTime)) {
    // Released while this thread sleeps, so that the group can be destroyed meanwhile.
    auto const alive = group.lock();
    if (!alive) return std::nullopt;
    if (auto health = alive->group().health(); !health.ok()) return health;
    if (Clock::now() < deadline) continue;
    alive->group().abort(text);
    return std::nullopt;
  }
}

DelegatedWork::DelegatedWork(WorkTitle const& title, int rank, std::vector<at::Tensor> const& inputs,
                             std::weak_ptr<GroupHandle> group, std::optional<FinishingTouch> touch)
    : Work(rank, title.type, title_for_profiler(title), inputs_for_profiler(inputs)),
      title_(title),
      is_on_cpu_(inputs.at(0).device().is_cpu()),
      group_(std::move(group)),
      touch_(std::move(touch)),
      future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}

void DelegatedWork::be_watched(ReductionWatch::Entry entry) {
  std::lock_guard const lock(mutex_);
  if (!is_settled_) watch_entry_.swap(entry);
}

void DelegatedWork::start(c10::intrusive_ptr<c10d::Work> inner) {
  auto const self = c10::intrusive_ptr<DelegatedWork>::reclaim_copy(this);
  inner->getFuture()->addCallback([self](c10::ivalue::Future& reduced) { self->take_over(reduced); });
  {
    std::lock_guard const lock(mutex_);
    inner_ = std::move(inner);
  }
  has_started_.notify_all();
}

void DelegatedWork::take_over(c10::ivalue::Future& reduced) {
  try {
    if (reduced.hasError()) {
      auto const reason = text_of(reduced.exception_ptr());
      std::rethrow_exception(keep_error([&] { return report(reason); }));
    }
    finish_once();
    settle(nullptr, touch_ ? c10::IValue(touch_->results) : reduced.value());
  } catch (std::exception const&) {
    settle(std::current_exception(), {});
  }
}

void DelegatedWork::settle(std::exception_ptr const& error, c10::IValue value) {
  ReductionWatch::Entry entry;  // Released after the lock.
  {
    std::lock_guard const lock(mutex_);
    if (std::exchange(is_settled_, true)) return;
    entry.swap(watch_entry_);
  }
  error ? future_->setError(error) : future_->markCompleted(std::move(value));
  if (recordFunctionEndCallback_) recordFunctionEndCallback_();
}

void DelegatedWork::fail_with(GroupHandle const& group) {
  auto const error = keep_error([&] { return make_error(title_.name, group.group().health(), group.failure_note()); });
  has_started_.notify_all();
  settle(error, {});
}

template <typename Make>
std::exception_ptr DelegatedWork::keep_error(Make&& make) {
  std::call_once(has_error_, [&] {
    auto error = make();
    std::lock_guard const lock(mutex_);
    exception_ = std::move(error);
  });
  return exception();
}

void DelegatedWork::finish_once() {
  if (!touch_) return;
  std::call_once(is_finished_, [this] {
    touch_->run();
    touch_->run = nullptr;  // Frees the stand-ins.
  });
}

void DelegatedWork::refuse(std::exception_ptr error) {
  keep_error([&] { return error; });
  has_started_.notify_all();
  settle(error, {});
}

void DelegatedWork::refuse_for(std::string const& reason) {
  auto const alive = group_.lock();
  if (alive && !alive->group().health().ok()) return fail_with(*alive);
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
      auto const is_settled = [&] { return inner_ || exception_; };
      if (has_started_.wait_until(lock, std::min(deadline, Clock::now() + kSignalSlice), is_settled)) {
        if (exception_) std::rethrow_exception(exception_);
        return inner_;
      }
    }
    raise_pending_signals();
    throw_if_group_failed();
    TORCH_CHECK_WITH(DistBackendError, Clock::now() < deadline, title_.name,
                     " Timed out : the group that reduces for it is still being made");
  }
}

bool DelegatedWork::isCompleted() {
  if (exception()) return true;
  auto const inner = inner_if_started();
  // A failed reduction is complete only when its error is known.
  if (!inner || !inner->isCompleted() || !inner->isSuccess()) return false;
  finish_once();
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
  if (touch_) return touch_->results;
  return wait_for_inner(Clock::time_point::max())->result();
}

void DelegatedWork::synchronize() { wait_for_inner(Clock::time_point::max())->synchronize(); }

void DelegatedWork::abort() { abort_if_alive(group_, std::string(title_.name) + " was aborted"); }

float DelegatedWork::getDuration() const {
  auto const inner = inner_if_started();
  TORCH_CHECK(inner, title_.name, " has not started yet");
  return inner->getDuration();
}

std::uint64_t DelegatedWork::getSequencenumber() const { return title_.sequence_number; }

bool DelegatedWork::wait(std::chrono::milliseconds timeout) {
  auto const deadline = deadline_after(timeout);
  auto const inner = wait_for_inner(deadline);
  try {
    if (is_on_cpu_) wait_in_slices(*inner, deadline);
    inner->wait(is_on_cpu_ ? kNoTimeout : timeout);
    finish_once();
    return true;
  } catch (pybind11::error_already_set const&) {
    throw;  // Ctrl-C.
  } catch (std::exception const&) {
    if (is_on_cpu_ && !inner->isCompleted()) throw;  // The caller's timeout ran out, not the reduction's.
    auto const reason = text_of(std::current_exception());
    std::rethrow_exception(keep_error([&] { return report(reason); }));
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
  if (!alive || alive->group().health().ok()) return;
  fail_with(*alive);
  std::rethrow_exception(exception());
}

std::exception_ptr DelegatedWork::report(std::string const& reason) {
  // A reduction that ran out of its own time is a failure by itself, so the group gets no time to explain it.
  auto const patience = Clock::now() - created_ < title_.timeout ? kSymptomTime : std::chrono::seconds(0);
  std::string const text = std::string(title_.name) + " failed in the group that reduces for it: " + reason;
  if (auto const failure = fail_by_symptom(group_, text, patience)) {
    auto const alive = group_.lock();
    return make_error(title_.name, *failure, alive ? alive->failure_note() : "");
  }
  return std::make_exception_ptr(c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, text));
}

}  // namespace headway::c10d_backend
