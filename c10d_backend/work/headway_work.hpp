// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "group/group_handle.hpp"
#include "tensors/work_tensors.hpp"
#include "torch_headers.hpp"
#include "work/op_info.hpp"

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

namespace headway::c10d_backend {

/// Work of one collective call: one or more operations of the group, complete when all of them are.
///
/// Lock order: completion_mutex_ before those of the base class. Neither is held during a call of the group.
class HeadwayWork final : public c10d::Work {
 public:
  /// `inputs` are for profilers.
  HeadwayWork(std::shared_ptr<GroupHandle> handle, OpInfo const& op, int rank, WorkTensors tensors,
              std::vector<comm::OperationPtr> operations, std::vector<at::Tensor> const& inputs);
  /// A pending operation continues, and its tensors live until it is done.
  ~HeadwayWork() override;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  /// Waits for all operations. The first error is stored and thrown by this and later calls. If `timeout` passes first,
  /// this throws and the operations continue. If the work's own timeout passes, the group fails.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  float getDuration() const override;
  std::uint64_t getSequencenumber() const override;
#if HEADWAY_TORCH_HAS_COMPLETION_HOOKS
  std::uint64_t getCompletionKey() const override { return op_.key; }
  std::chrono::milliseconds getTimeout() const override { return op_.timeout; }
#endif

 private:
  [[nodiscard]] bool all_done() const;
  /// Waits for one operation in slices of kSignalSlice. Throws at `caller_deadline`.
  void wait_for(comm::Operation& operation, comm::Deadline caller_deadline);
  /// Null once complete: a work that a user keeps must not keep the group.
  [[nodiscard]] std::shared_ptr<GroupHandle> handle();
  /// Writes results back and settles the error, the future and the profiler's record, once. All operations must be
  /// done.
  void complete();
  /// Copies temporaries to the outputs. @returns the error, or null. Not thread-safe.
  std::exception_ptr write_back();
  /// Removes the future that getFuture() made, because nothing will complete it. The next call makes a new one.
  void withdraw_future(std::exception_ptr const& error);

  OpInfo op_;
  std::vector<comm::OperationPtr> operations_;
  comm::Deadline started_ = comm::Clock::now();
  comm::Deadline completed_at_{};

  std::mutex completion_mutex_;  ///< Guards the members below.
  std::shared_ptr<GroupHandle> handle_;
  std::atomic<bool> is_complete_ = false;
  WorkTensors tensors_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace headway::c10d_backend
