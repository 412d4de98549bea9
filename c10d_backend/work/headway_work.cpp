// SPDX-License-Identifier: Apache-2.0

// Work of a collective on CPU tensors.
//
// Idea: libcomm moves the bytes; nothing here follows the operation unless somebody asks. A caller of wait() drives
// the group in its own thread. getFuture() registers callbacks instead, and the completion thread
// (runtime/completion_thread.hpp) finishes the work. Either may come first, or both at once, so complete() does its
// part exactly once.
//
// Example: all_to_all of a strided output, then wait(). The operations complete, complete() copies the temporary to
// the output, settles the error (none), and releases the group, the temporaries and the inputs.
//
// Invariants:
// - is_complete_ is set last, after the results were written back: who sees it may read the outputs.
// - A timeout of the caller only ends the caller's wait. The work's own timeout fails the group, since a peer that is
//   late by that much is treated as lost.
// - A work that is destroyed while pending passes its tensors to a callback, because peers still access them.

#include "work/headway_work.hpp"

#include "runtime/errors.hpp"
#include "runtime/interpreter.hpp"
#include "work/completion_poll.hpp"

#include <algorithm>
#include <string>

namespace headway::c10d_backend {

namespace {

/// Time for which getFuture() polls before other threads take over. It is longer than waking the threads of a peer
/// takes. With less, one late wake-up makes the peer wait for a wake-up in the next exchange, and so on
/// (docs/design/sleeping.md).
constexpr std::chrono::microseconds kFuturePollTime{100};

comm::Status first_failure(std::vector<comm::OperationPtr> const& operations) {
  for (auto const& operation : operations) {
    if (auto status = operation->status(); !status.ok()) return status;
  }
  return {};
}

}  // namespace

HeadwayWork::HeadwayWork(std::shared_ptr<GroupHandle> handle, OpInfo const& op, int rank, WorkTensors tensors,
                         std::vector<comm::OperationPtr> operations, std::vector<at::Tensor> const& inputs)
    : Work(rank, op.type, profiler_title(op), inputs_for_profiler(inputs)),
      op_(op),
      operations_(std::move(operations)),
      handle_(std::move(handle)),
      tensors_(std::move(tensors)) {
  if (handle_->hooks().wants_completions()) {
    handle_->hooks().started(op_.key, completion_poll(operations_));
  }
}

// Peers may still read or write the tensors, so they must outlive the operations. A callback that owns them waits for
// these, writes temporaries back as wait() would have done, and drops them.
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
    TORCH_WARN("headway: cannot watch over ", op_.name, " until it is done: ", error.what());
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

// Also drives the group: a loop that only polls isCompleted() must end.
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
  TORCH_CHECK(isCompleted(), "headway: the results of ", op_.op_name(), " are not there before wait()");
  std::lock_guard const lock(completion_mutex_);
  return tensors_.results;
}

void HeadwayWork::abort() {
  if (auto const handle = this->handle()) handle->abort(std::string(op_.name) + " was aborted");
}

std::uint64_t HeadwayWork::getSequencenumber() const { return op_.seq; }

float HeadwayWork::getDuration() const {
  TORCH_CHECK(is_complete_, "headway: the duration of ", op_.op_name(), " is not known before wait()");
  return std::chrono::duration<float, std::milli>(completed_at_ - started_).count();
}

bool HeadwayWork::wait(std::chrono::milliseconds timeout) {
  if (!is_complete_) {
    comm::Deadline const deadline = timeout == kNoTimeout ? comm::Deadline::max() : comm::deadline_after(timeout);
    translate_errors(op_.name, [&] {
      for (auto const& operation : operations_) {
        if (!operation->done()) wait_for(*operation, deadline);
      }
    });
    complete();
  }
  if (auto const error = exception()) std::rethrow_exception(error);
  return true;
}

// Waits in slices of kSignalSlice, so that Ctrl-C is noticed. A work that is late fails the group for all ranks; a
// caller that gave a shorter timeout only stops waiting, and may wait again.
void HeadwayWork::wait_for(comm::Operation& operation, comm::Deadline caller_deadline) {
  auto const handle = this->handle();
  if (!handle) return;  // Another thread has completed this work.
  auto& group = handle->group();
  for (;;) {
    comm::Status const status = group.wait(operation, kSignalSlice);
    if (operation.done()) return;
    raise_pending_signals();
    auto const now = comm::Clock::now();
    if (now >= started_ + op_.timeout) {
      handle->abort(std::string(op_.name) + " Timed out after " + std::to_string(op_.timeout.count()) +
                    " ms: " + std::string(status.message()));
    } else if (now >= caller_deadline) {
      throw comm::OperationError(status);
    }
  }
}

// May be called by several threads at once, such as a caller of wait() and the completion thread. One of them does
// the part under the lock; the others find it done.
void HeadwayWork::complete() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  // Released after the lock: it may be the last reference, and leaving a group takes time.
  std::shared_ptr<GroupHandle> handle;
  WorkTensors released;  // Freed after the lock too, because Python may own tensors.
  c10::IValue value;
  std::exception_ptr error;
  if (auto const status = first_failure(operations_); !status.ok()) {
    auto const group = this->handle();
    error = make_error(op_.name, status, group ? group->failure_note() : "");
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
  if (handle) handle->hooks().completed(op_.key, !error, getDuration());
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

// All callers get one future. It is completed by complete(), whoever calls that: the completion thread, this call if
// the work is done within kFuturePollTime, or a caller of wait().
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
    bool const is_pending = translate_errors(op_.name, [&] {
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
