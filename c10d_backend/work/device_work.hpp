// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "group/group_handle.hpp"
#include "tensors/work_tensors.hpp"
#include "torch_headers.hpp"
#include "work/op_info.hpp"

#include <headway/comm/device_group.hpp>

#include <c10/core/Event.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace headway::c10d_backend {

/// Work of one collective call on CUDA tensors, in stream order.
class DeviceWork final : public c10d::Work {
 public:
  /// `stream`: the stream that was current at the call. The operations run after the work that it had then.
  DeviceWork(std::shared_ptr<GroupHandle> handle, OpInfo const& op, int rank, WorkTensors tensors,
             std::vector<comm::DeviceOperationPtr> operations, std::vector<at::Tensor> const& inputs,
             c10::Stream const& stream);
  /// Calls `callback` with each stream that waits for the work from now on.
  void on_join(std::function<void(c10::Stream)> callback);
  /// Keeps the tensors until the stream of the operations waits for them, because the allocator reuses memory in
  /// that stream's order, or else until the device is done.
  ~DeviceWork() override;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override;
  /// Makes the current stream wait. With a timeout the host waits too.
  /// @throws DistBackendError if the timeout passes, or if the group failed before the operation was done.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override { wait(); }
  void abort() override;
  /// The future is complete in stream order, so it holds an error only if the group had failed at the first call.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  std::uint64_t getSequencenumber() const override { return op_.seq; }
#if HEADWAY_TORCH_HAS_COMPLETION_HOOKS
  std::uint64_t getCompletionKey() const override { return op_.key; }
  std::chrono::milliseconds getTimeout() const override { return op_.timeout; }
#endif

 private:
  /// Makes `stream` wait. The first call also writes results back, on that stream.
  void join(c10::Stream const& stream);
  /// Does the part of join() for which the caller holds join_mutex_.
  /// @returns whether the tensors can be released: `stream` is the operations' own stream, and this is its first join.
  bool join_locked(c10::Stream const& stream);
  /// Polls until the device is done. @throws DistBackendError when `timeout` passes.
  void wait_on_host(std::chrono::milliseconds timeout);
  [[nodiscard]] bool all_done();
  /// Stores the first failure of the operations, if any.
  void store_first_failure();

  OpInfo op_;
  at::Device device_;
  c10::Stream stream_;
  std::vector<comm::DeviceOperationPtr> operations_;
  std::shared_ptr<GroupHandle> handle_;

  std::mutex join_mutex_;  ///< Guards the members below.
  WorkTensors tensors_;
  bool is_released_ = false;
  std::optional<c10::Event> written_;  ///< Recorded after the write-back, on the first stream that waited.
  std::function<void(c10::Stream)> on_join_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace headway::c10d_backend
