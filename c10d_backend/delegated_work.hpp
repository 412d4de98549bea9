#pragma once

#include "group_handle.hpp"
#include "torch_headers.hpp"
#include "work_title.hpp"

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace headway::c10d_backend {

/// What a headway group adds to a reduction of its delegate: run once after it, before anyone sees it complete.
struct FinishingTouch {
  std::function<void()> run;
  std::vector<at::Tensor> results;
};

/// A reduction that another backend (Gloo, NCCL) does for a headway group. It exists before that backend does.
class DelegatedWork final : public c10d::Work {
 public:
  /// `inputs` are what a profiler shows and must not be empty. If the reduction fails, so does `group`, and the other
  /// way round.
  DelegatedWork(WorkTitle const& title, int rank, std::vector<at::Tensor> const& inputs,
                std::weak_ptr<GroupHandle> group, std::optional<FinishingTouch> touch);

  /// The reduction is under way as `inner`. Either this or refuse() is called, once.
  void start(c10::intrusive_ptr<c10d::Work> inner);
  /// The reduction could not be started; wait() throws `error`.
  void refuse(std::exception_ptr error);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  /// Waits for the delegate; its failure fails the headway group too, and is thrown as DistBackendError.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  /// The delegate's own future, which knows its streams, then the finishing touch. Blocks while the delegate is made.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  float getDuration() const override;
  std::uint64_t getSequencenumber() const override;

 private:
  c10::intrusive_ptr<c10d::Work> inner_if_started() const;
  /// @throws what refuse() got, or c10::DistBackendError at the deadline.
  c10::intrusive_ptr<c10d::Work> wait_for_inner(std::chrono::steady_clock::time_point deadline);
  /// @throws c10::DistBackendError if the group has failed: a delegate that lacks a rank may wait until its own
  /// timeout.
  void throw_if_group_failed() const;
  void wait_in_slices(c10d::Work& inner, std::chrono::steady_clock::time_point deadline);
  void finish_once();
  /// Fails the group, and keeps and returns the error in the form that callers see.
  std::exception_ptr report(std::string const& reason);

  WorkTitle title_;
  bool is_on_cpu_;
  std::weak_ptr<GroupHandle> group_;
  std::optional<FinishingTouch> touch_;
  std::once_flag is_finished_;
  std::condition_variable has_started_;
  c10::intrusive_ptr<c10d::Work> inner_;  ///< Guarded by the base's mutex_, as exception_ is.
};

}  // namespace headway::c10d_backend
