#pragma once

#include "group_handle.hpp"
#include "torch_headers.hpp"
#include "work_tensors.hpp"
#include "work_title.hpp"

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

/// One call of a collective on tensors of a CUDA device, in the order of streams.
class DeviceWork final : public c10d::Work {
 public:
  /// `stream` is the one on which the operations stand.
  DeviceWork(std::shared_ptr<GroupHandle> handle, WorkTitle const& title, int rank, WorkTensors tensors,
             std::vector<comm::DeviceOperationPtr> operations, std::vector<at::Tensor> const& inputs,
             c10::Stream const& stream);
  /// Calls `callback` with each stream that waits for the work from now on.
  void on_join(std::function<void(c10::Stream)> callback);
  /// Tensors live until the stream on which the operations stand waits for them, since the allocator hands out their
  /// memory in its order, or until the device is done.
  ~DeviceWork() override;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override;
  /// Lets the current stream wait, not the host, unless a timeout is given: then the host waits as well, and this
  /// throws when it passes. Throws if the group has failed before the operation was done.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override { wait(); }
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  std::uint64_t getSequencenumber() const override { return title_.sequence_number; }

 private:
  /// Lets `stream` wait, and writes results back there, once.
  void join(c10::Stream const& stream);
  /// @returns whether the tensors are needed no more than `stream` needs them.
  bool join_once(c10::Stream const& stream);
  void wait_on_host(std::chrono::milliseconds timeout);
  [[nodiscard]] bool all_done();
  /// Keeps the first failure, if there is one.
  void look_for_failure();

  WorkTitle title_;
  at::Device device_;
  c10::Stream stream_;
  std::vector<comm::DeviceOperationPtr> operations_;
  std::shared_ptr<GroupHandle> handle_;

  std::mutex join_mutex_;  ///< Guards what follows.
  WorkTensors tensors_;
  bool is_released_ = false;
  std::optional<c10::Event> written_;  ///< After results were written back, where the first stream waited.
  std::function<void(c10::Stream)> on_join_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace headway::c10d_backend
