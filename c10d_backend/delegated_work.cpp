#include "delegated_work.hpp"

#include "errors.hpp"
#include "pending_signals.hpp"
#include "released_gil.hpp"

#include <algorithm>
#include <mutex>

namespace headway::c10d_backend {

namespace {

using Clock = std::chrono::steady_clock;

Clock::time_point deadline_after(std::chrono::milliseconds timeout) {
  return timeout == kNoTimeout ? Clock::time_point::max() : Clock::now() + timeout;
}

std::string text_of(std::exception_ptr const& error) {
  try {
    std::rethrow_exception(error);
  } catch (c10::Error const& caught) {
    return caught.what_without_backtrace();
  } catch (std::exception const& caught) {
    return caught.what();
  }
}

}  // namespace

DelegatedWork::DelegatedWork(WorkTitle const& title, int rank, std::vector<at::Tensor> const& inputs,
                             std::weak_ptr<GroupHandle> group, std::optional<FinishingTouch> touch)
    : Work(rank, title.type, title_for_profiler(title), inputs_for_profiler(inputs)),
      title_(title),
      is_on_cpu_(inputs.at(0).device().is_cpu()),
      group_(std::move(group)),
      touch_(std::move(touch)) {}

void DelegatedWork::start(c10::intrusive_ptr<c10d::Work> inner) {
  auto const self = c10::intrusive_ptr<DelegatedWork>::reclaim_copy(this);
  inner->getFuture()->addCallback([self](c10::ivalue::Future& future) {
    if (future.hasError()) {
      self->report(text_of(future.exception_ptr()));
    } else {
      self->finish_once();
    }
    if (self->recordFunctionEndCallback_) self->recordFunctionEndCallback_();
  });
  {
    std::lock_guard const lock(mutex_);
    inner_ = std::move(inner);
  }
  has_started_.notify_all();
}

void DelegatedWork::finish_once() {
  if (touch_) std::call_once(is_finished_, touch_->run);
}

void DelegatedWork::refuse(std::exception_ptr error) {
  {
    std::lock_guard const lock(mutex_);
    exception_ = std::move(error);
  }
  if (recordFunctionEndCallback_) recordFunctionEndCallback_();
  has_started_.notify_all();
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
        if (inner_) return inner_;
        std::rethrow_exception(exception_);
      }
    }
    raise_pending_signals();
    throw_if_group_failed();
    TORCH_CHECK_WITH(DistBackendError, Clock::now() < deadline, "headway: ", title_.name,
                     " Timed out : the group that reduces for it is still being made");
  }
}

bool DelegatedWork::isCompleted() {
  auto const inner = inner_if_started();
  if (!inner) return exception() != nullptr;
  if (!inner->isCompleted()) return false;
  if (inner->isSuccess()) finish_once();
  return true;
}

bool DelegatedWork::isSuccess() const {
  auto const inner = inner_if_started();
  return inner && inner->isSuccess();
}

std::exception_ptr DelegatedWork::exception() const {
  std::lock_guard const lock(mutex_);
  return exception_ || !inner_ ? exception_ : inner_->exception();
}

std::vector<at::Tensor> DelegatedWork::result() {
  if (touch_) return touch_->results;
  return wait_for_inner(Clock::time_point::max())->result();
}

void DelegatedWork::synchronize() { wait_for_inner(Clock::time_point::max())->synchronize(); }

void DelegatedWork::abort() { abort_if_alive(group_, std::string(title_.name) + " was aborted"); }

c10::intrusive_ptr<c10::ivalue::Future> DelegatedWork::getFuture() {
  ReleasedGil const released;
  auto const future = wait_for_inner(Clock::time_point::max())->getFuture();
  if (!touch_) return future;
  auto const self = c10::intrusive_ptr<DelegatedWork>::reclaim_copy(this);
  return future->then(
      [self](c10::ivalue::Future& reduced) -> c10::IValue {
        static_cast<void>(reduced.value());  // Throws what made the reduction fail.
        self->finish_once();
        return self->touch_->results;
      },
      c10::ListType::create(c10::TensorType::get()));
}

float DelegatedWork::getDuration() const {
  auto const inner = inner_if_started();
  TORCH_CHECK(inner, "headway: ", title_.name, " has not started yet");
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
    throw;  // Ctrl-C
  } catch (std::exception const&) {
    if (is_on_cpu_ && !inner->isCompleted()) throw;  // The caller's patience ended, not the reduction.
    std::rethrow_exception(report(text_of(std::current_exception())));
  }
}

void DelegatedWork::wait_in_slices(c10d::Work& inner, Clock::time_point deadline) {
  while (!inner.isCompleted()) {
    auto const now = Clock::now();
    auto const slice = std::min<Clock::duration>(kSignalSlice, deadline - now);
    try {
      // A wait of zero would mean one without end.
      inner.wait(std::max(std::chrono::milliseconds(1), std::chrono::duration_cast<std::chrono::milliseconds>(slice)));
    } catch (c10::Error const&) {
      if (inner.isCompleted()) return;
      if (Clock::now() >= deadline) throw;
      raise_pending_signals();
      throw_if_group_failed();
    }
  }
}

void DelegatedWork::throw_if_group_failed() const {
  auto const alive = group_.lock();
  if (!alive) return;
  if (auto const health = alive->group().health(); !health.ok())
    std::rethrow_exception(make_error(title_.name, health, alive->failure_note()));
}

std::exception_ptr DelegatedWork::report(std::string const& reason) {
  std::string const text =
      "headway: " + std::string(title_.name) + " failed in the group that reduces for it: " + reason;
  abort_if_alive(group_, text);
  std::lock_guard const lock(mutex_);
  if (!exception_) {
    exception_ =
        std::make_exception_ptr(c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, text));
  }
  return exception_;
}

}  // namespace headway::c10d_backend
