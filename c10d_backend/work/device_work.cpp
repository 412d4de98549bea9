// SPDX-License-Identifier: Apache-2.0

// Work of a collective on CUDA tensors.
//
// Idea: wait() is an instruction to a stream. The current stream waits for the operation's event, and the host goes on,
// unless wait() has a timeout. So a work may be waited for several times, on several streams, and no thread follows it.
//
// Who keeps the tensors? torch's caching allocator gives memory out again in the order of one stream: the stream on
// which the tensor was made. Once that stream waits for the operation, the work releases the tensors. In two cases the
// handle keeps them until the device is done (GroupHandle::keep_until_done): the work is destroyed before that, or
// peers write directly into an output.
//
// Example: y = all_to_all(x) on stream 1, then wait() on stream 2. The work keeps the tensors, since the allocator
// could reuse the memory of x on stream 1 too early. After a wait() on stream 1 it releases them.
//
// Invariants: results are written back (WorkTensors::write_back() copies temporaries to strided outputs) once, on the
// first stream that waits. Later streams wait for that copy too.

#include "work/device_work.hpp"

#include "runtime/errors.hpp"
#include "runtime/interpreter.hpp"
#include "work/completion_poll.hpp"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

namespace headway::c10d_backend {

namespace {

/// Pause between two queries of the device in wait(timeout).
constexpr auto kPollTime = std::chrono::microseconds(100);

}  // namespace

DeviceWork::DeviceWork(std::shared_ptr<GroupHandle> handle, OpInfo const& op, int rank, WorkTensors tensors,
                       std::vector<comm::DeviceOperationPtr> operations, std::vector<at::Tensor> const& inputs,
                       c10::Stream const& stream)
    : Work(rank, op.type, profiler_title(op), inputs_for_profiler(inputs)),
      op_(op),
      device_(*tensors.device()),
      stream_(stream),
      operations_(std::move(operations)),
      handle_(std::move(handle)),
      tensors_(std::move(tensors)) {
  if (recordFunctionEndCallback_) recordFunctionEndCallback_();  // The host's part of the operation ends here.
  if (handle_->hooks().wants_completions()) {  // The hooks poll the operations, and report when they are done.
    handle_->hooks().started(op_.key, completion_poll(operations_));
  }
}

DeviceWork::~DeviceWork() {
  if (is_released_ || handle_->is_inherited()) return;  // A forked child has inherited no operation of the device.
  try {
    handle_->keep_until_done(std::move(operations_), std::move(tensors_));
  } catch (std::exception const& error) {  // The device has failed, so nothing runs there any more.
    TORCH_WARN("headway: ", op_.name, " on ", device_, ": ", error.what());
  }
}

bool DeviceWork::all_done() {
  return std::ranges::all_of(operations_, [](auto const& operation) { return operation->done(); });
}

void DeviceWork::on_join(std::function<void(c10::Stream)> callback) {
  std::lock_guard const lock(join_mutex_);
  on_join_ = std::move(callback);
}

bool DeviceWork::isCompleted() {
  ReleasedGil const released;
  if (!translate_errors(op_.name, [this] { return all_done(); })) return false;
  store_first_failure();
  return true;
}

bool DeviceWork::isSuccess() const { return !exception(); }

std::exception_ptr DeviceWork::exception() const {
  std::lock_guard const lock(mutex_);
  return exception_;
}

std::vector<at::Tensor> DeviceWork::result() {
  std::lock_guard const lock(join_mutex_);
  return tensors_.results;
}

void DeviceWork::store_first_failure() {
  for (auto const& operation : operations_) {
    auto const status = operation->status();
    if (status.ok()) continue;
    auto error = make_error(op_.name, status, handle_->failure_note());
    std::lock_guard const lock(mutex_);
    if (!exception_) exception_ = std::move(error);
    return;
  }
}

void DeviceWork::join(c10::Stream const& stream) {
  WorkTensors released;  // Freed after the lock, because Python may own tensors.
  std::vector<comm::DeviceOperationPtr> pending;
  {
    std::lock_guard const lock(join_mutex_);
    if (!join_locked(stream)) return;
    released = tensors_.release();
    pending = operations_;
  }
  // After a failure the stream goes on although peers may still write directly into an output. So the order of the
  // stream does not protect that memory.
  if (std::ranges::any_of(pending, [](auto const& operation) { return operation->is_written_by_peers(); })) {
    handle_->keep_until_done(std::move(pending), std::move(released));
  }
}

bool DeviceWork::join_locked(c10::Stream const& stream) {
  translate_errors(op_.name, [&] {
    for (auto const& operation : operations_) operation->join(stream.native_handle());
  });
  // A tensor may be a slot of a SlotRing, which must not reuse the slot before this stream has read it.
  if (on_join_) on_join_(stream);
  if (written_) {
    written_->block(stream);
  } else {
    c10::StreamGuard const guard(stream);
    tensors_.write_back();
    written_.emplace(device_.type());
    written_->record(stream);
  }
  return stream == stream_ && !std::exchange(is_released_, true);
}

bool DeviceWork::wait(std::chrono::milliseconds timeout) {
  if (timeout != kNoTimeout) wait_on_host(timeout);
  join(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  store_first_failure();
  if (auto const error = exception()) std::rethrow_exception(error);
  return true;
}

void DeviceWork::wait_on_host(std::chrono::milliseconds timeout) {
  ReleasedGil const released;
  auto const deadline = comm::deadline_after(timeout);
  auto next_signal_check = comm::Clock::now() + kSignalSlice;
  while (!all_done()) {
    auto const now = comm::Clock::now();
    TORCH_CHECK_WITH(DistBackendError, now < deadline, op_.name, " is not done on ", device_, " after ",
                     timeout.count(), " ms");
    if (now >= next_signal_check) {
      raise_pending_signals();
      next_signal_check = now + kSignalSlice;
    }
    std::this_thread::sleep_for(kPollTime);
  }
}

void DeviceWork::abort() { handle_->abort(std::string(op_.name) + " was aborted"); }

c10::intrusive_ptr<c10::ivalue::Future> DeviceWork::getFuture() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  c10::IValue value;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages;
  {
    std::lock_guard const lock(join_mutex_);
    if (future_) return future_;
    // The value is a list of tensors, or with `result_lengths` a list of lists.
    auto const tensors = c10::ListType::create(c10::TensorType::get());
    future = c10::make_intrusive<c10::ivalue::Future>(
        tensors_.result_lengths.empty() ? c10::TypePtr(tensors) : c10::ListType::create(tensors),
        std::vector<c10::Device>{device_});
    future_ = future;
    value = tensors_.value();
    storages = tensors_.storages();  // Includes inputs: a caller that waits for the future may overwrite them.
  }
  try {
    // The future records events on the current streams, so the current one must be a stream that waits for the
    // operation.
    auto const stream = c10::impl::VirtualGuardImpl(device_.type()).getStreamFromGlobalPool(device_);
    join(stream);
    store_first_failure();
    if (auto const error = exception()) {
      future->setErrorIfNeeded(error);
      return future;
    }
    c10::StreamGuard const guard(stream);
    future->markCompleted(std::move(value), std::move(storages));
  } catch (...) {
    future->setErrorIfNeeded(std::current_exception());  // Another thread may have got the future meanwhile.
    throw;
  }
  return future;
}

}  // namespace headway::c10d_backend
