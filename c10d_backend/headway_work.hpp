#pragma once

#include "group_handle.hpp"
#include "torch_headers.hpp"
#include "work_tensors.hpp"
#include "work_title.hpp"

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

namespace headway::c10d_backend {

/// One call of a collective: one or more operations of the group, complete when all of them are.
///
/// Locks: completion_mutex_ comes before those of the base class; neither is held while the group is called.
class HeadwayWork final : public c10d::Work {
 public:
  /// `inputs` are what a profiler shows.
  HeadwayWork(std::shared_ptr<GroupHandle> handle, WorkTitle const& title, int rank, WorkTensors tensors,
              std::vector<comm::OperationPtr> operations, std::vector<at::Tensor> const& inputs);
  /// An operation that is still pending goes on, and its tensors live until it is done.
  ~HeadwayWork() override;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  /// Waits for all operations. The first error is kept and thrown, now and by later calls. When `timeout` passes first
  /// this throws, and the operations go on; when the work's own timeout passes, the group fails.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  float getDuration() const override;
  std::uint64_t getSequencenumber() const override;

 private:
  [[nodiscard]] bool all_done() const;
  void wait_for(comm::Operation& operation, comm::Deadline caller_deadline);
  /// Null once complete: a work that a user keeps must not keep the group.
  [[nodiscard]] std::shared_ptr<GroupHandle> handle();
  /// Writes results back and settles the error, the future and the profiler's record; does so once. All are done.
  void complete();
  /// @returns the error of the write-back, or null. Not for several threads at a time.
  std::exception_ptr write_back();
  /// Nothing will complete the future that getFuture() made: the next call makes a new one.
  void withdraw_future(std::exception_ptr const& error);

  WorkTitle title_;
  std::vector<comm::OperationPtr> operations_;
  comm::Deadline started_ = comm::Clock::now();
  comm::Deadline completed_at_{};

  std::mutex completion_mutex_;  ///< Guards what follows.
  std::shared_ptr<GroupHandle> handle_;
  std::atomic<bool> is_complete_ = false;
  WorkTensors tensors_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace headway::c10d_backend
