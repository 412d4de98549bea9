#include "headway_work.hpp"

#include "errors.hpp"
#include "pending_signals.hpp"
#include "released_gil.hpp"

#include <algorithm>
#include <string>

namespace headway::c10d_backend {

namespace {

/// Time for which getFuture() polls before other threads take over; waking one takes about as long.
constexpr std::chrono::microseconds kFuturePollTime{20};

comm::Status first_failure(std::vector<comm::OperationPtr> const& operations) {
  for (auto const& operation : operations) {
    if (auto status = operation->status(); !status.ok()) return status;
  }
  return {};
}

}  // namespace

HeadwayWork::HeadwayWork(std::shared_ptr<GroupHandle> handle, WorkTitle const& title, int rank, WorkTensors tensors,
                         std::vector<comm::OperationPtr> operations, std::vector<at::Tensor> const& inputs)
    : Work(rank, title.type, title_for_profiler(title), inputs_for_profiler(inputs)),
      title_(title),
      operations_(std::move(operations)),
      handle_(std::move(handle)),
      tensors_(std::move(tensors)) {}

HeadwayWork::~HeadwayWork() {
  if (is_complete_ || handle_->is_inherited()) return;
  if (recordFunctionEndCallback_) recordFunctionEndCallback_();
  if (all_done()) {  // Done, for instance after the group's end: no other thread is needed.
    if (first_failure(operations_).ok()) static_cast<void>(write_back());
    return;
  }
  auto const tensors = std::make_shared<WorkTensors>(std::move(tensors_));
  try {
    ReleasedGil const released;
    auto const finish = [tensors, operations = operations_] {
      if (first_failure(operations).ok()) tensors->write_back();
    };
    if (!handle_->when_done(operations_, finish, std::chrono::microseconds(0))) finish();
  } catch (std::exception const& error) {
    TORCH_WARN("headway: cannot watch over ", title_.name, " until it is done: ", error.what());
    new std::shared_ptr<WorkTensors>(tensors);  // The library may still use the memory.
  }
}

std::shared_ptr<GroupHandle> HeadwayWork::handle() {
  std::lock_guard const lock(completion_mutex_);
  return handle_;
}

bool HeadwayWork::all_done() const {
  return std::ranges::all_of(operations_, [](auto const& operation) { return operation->done(); });
}

bool HeadwayWork::isCompleted() {
  if (is_complete_) return true;
  ReleasedGil const released;
  auto const handle = this->handle();
  bool const is_done = std::ranges::all_of(operations_, [&](comm::OperationPtr const& operation) {
    return operation->done() || !handle || handle->group().test(*operation);
  });
  if (is_done) complete();
  return is_done;
}

bool HeadwayWork::isSuccess() const { return is_complete_ && !exception(); }

std::exception_ptr HeadwayWork::exception() const {
  std::lock_guard const lock(mutex_);
  return exception_;
}

int HeadwayWork::sourceRank() const { return operations_.empty() ? -1 : operations_.back()->source(); }

std::vector<at::Tensor> HeadwayWork::result() {
  TORCH_CHECK(isCompleted(), "headway: the results of ", title_.verb(), " are not there before wait()");
  std::lock_guard const lock(completion_mutex_);
  return tensors_.results;
}

void HeadwayWork::abort() {
  if (auto const handle = this->handle()) handle->group().abort(std::string(title_.name) + " was aborted");
}

std::uint64_t HeadwayWork::getSequencenumber() const { return title_.sequence_number; }

float HeadwayWork::getDuration() const {
  TORCH_CHECK(is_complete_, "headway: the duration of ", title_.verb(), " is not known before wait()");
  return std::chrono::duration<float, std::milli>(completed_at_ - started_).count();
}

bool HeadwayWork::wait(std::chrono::milliseconds timeout) {
  if (!is_complete_) {
    comm::Deadline const deadline = timeout == kNoTimeout ? comm::Deadline::max() : comm::deadline_after(timeout);
    translate_errors(title_.name, [&] {
      for (auto const& operation : operations_) {
        if (!operation->done()) wait_for(*operation, deadline);
      }
    });
    complete();
  }
  if (auto const error = exception()) std::rethrow_exception(error);
  return true;
}

void HeadwayWork::wait_for(comm::Operation& operation, comm::Deadline caller_deadline) {
  auto const handle = this->handle();
  if (!handle) return;  // Another thread has completed this work.
  auto& group = handle->group();
  for (;;) {
    comm::Status const status = group.wait(operation, kSignalSlice);
    if (operation.done()) return;
    raise_pending_signals();
    auto const now = comm::Clock::now();
    if (now >= started_ + title_.timeout) {
      group.abort(std::string(title_.name) + " Timed out after " + std::to_string(title_.timeout.count()) +
                  " ms: " + std::string(status.message()));
    } else if (now >= caller_deadline) {
      throw comm::OperationError(status);
    }
  }
}

void HeadwayWork::complete() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  // Released after the lock: it may be the last reference, and leaving a group takes time.
  std::shared_ptr<GroupHandle> handle;
  WorkTensors released;  // Freed after the lock too, because Python may own tensors.
  c10::IValue value;
  std::exception_ptr error;
  if (auto const status = first_failure(operations_); !status.ok()) {
    auto const group = this->handle();
    error = make_error(title_.name, status, group ? group->failure_note() : "");
  }
  {
    std::lock_guard const lock(completion_mutex_);
    if (is_complete_) return;
    if (!error) error = write_back();
    completed_at_ = comm::Clock::now();
    finish(error);
    is_complete_ = true;
    future = future_;
    if (future && !error) value = tensors_.value();
    handle = std::move(handle_);
    released = tensors_.release();
  }
  // Without the lock: callbacks of the future run here and may use this work.
  if (!future) return;
  if (error) {
    future->setErrorIfNeeded(error);
  } else {
    future->markCompleted(std::move(value));
  }
}

std::exception_ptr HeadwayWork::write_back() {
  try {
    tensors_.write_back();
    return nullptr;
  } catch (std::exception const&) {  // For instance, the output was resized meanwhile.
    return std::current_exception();
  }
}

c10::intrusive_ptr<c10::ivalue::Future> HeadwayWork::getFuture() {
  if (all_done()) complete();
  std::shared_ptr<GroupHandle> handle;
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    std::lock_guard const lock(completion_mutex_);
    if (future_) return future_;
    auto const tensors = c10::ListType::create(c10::TensorType::get());
    future = c10::make_intrusive<c10::ivalue::Future>(tensors_.result_lengths.empty() ? c10::TypePtr(tensors)
                                                                                      : c10::ListType::create(tensors));
    if (is_complete_) {
      if (auto const error = exception()) {
        future->setError(error);
      } else {
        future->markCompleted(tensors_.value());
      }
    }
    future_ = future;
    if (is_complete_) return future;
    handle = handle_;  // From now on another thread may complete this work and release the group.
  }
  auto const self = c10::intrusive_ptr<HeadwayWork>::reclaim_copy(this);
  ReleasedGil const released;
  try {
    bool const is_pending = translate_errors(title_.name, [&] {
      return handle->when_done(
          operations_, [self] { self->complete(); }, kFuturePollTime);
    });
    if (!is_pending) complete();
  } catch (...) {
    withdraw_future(std::current_exception());
    throw;
  }
  return future;
}

void HeadwayWork::withdraw_future(std::exception_ptr const& error) {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    std::lock_guard const lock(completion_mutex_);
    if (is_complete_) return;  // A caller of wait() has completed the future.
    future = std::exchange(future_, nullptr);
  }
  if (future) future->setErrorIfNeeded(error);  // Another thread may have got it meanwhile.
}

}  // namespace headway::c10d_backend
