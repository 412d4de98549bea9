#pragma once

#include "group_handle.hpp"
#include "reduction_watch.hpp"
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

/// Fails a group because its delegate has failed with `text`, unless the group itself fails within `patience`: a
/// delegate sees a connection break where the group knows which rank died, a moment later. @returns the group's own
/// failure; none if it had none, or nobody holds it any more.
std::optional<comm::Status> fail_by_symptom(std::weak_ptr<GroupHandle> const& group, std::string const& text,
                                            std::chrono::milliseconds patience);
/// Time in which the loss of a rank shows.
inline constexpr std::chrono::seconds kSymptomTime{1};

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
  /// The same with the failure of the group if it has failed, else with `reason`.
  void refuse_for(std::string const& reason);
  /// To be called before start().
  void be_watched(ReductionWatch::Entry entry);
  /// Ends the work with the failure of its group, which has failed. The delegate may go on for a while.
  void fail_with(GroupHandle const& group);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  /// Waits for the delegate; its failure fails the headway group too, and is thrown as DistBackendError.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  /// Completes after the finishing touch, or with the error that wait() throws.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  float getDuration() const override;
  std::uint64_t getSequencenumber() const override;

 private:
  c10::intrusive_ptr<c10d::Work> inner_if_started() const;
  /// @throws what refuse() got, or c10::DistBackendError at the deadline.
  c10::intrusive_ptr<c10d::Work> wait_for_inner(std::chrono::steady_clock::time_point deadline);
  /// @throws c10::DistBackendError if the group has failed: a delegate that lacks a rank may wait until its own
  /// timeout.
  void throw_if_group_failed();
  void wait_in_slices(c10d::Work& inner, std::chrono::steady_clock::time_point deadline);
  void finish_once();
  /// Takes over the outcome of the delegate's future, which is done.
  void take_over(c10::ivalue::Future& reduced);
  /// Completes the future, with `error` or else with `value`, unless it is.
  void settle(std::exception_ptr const& error, c10::IValue value);
  /// Keeps the first error that `make` returns, and returns the one that is kept.
  template <typename Make>
  std::exception_ptr keep_error(Make&& make);
  /// Fails the group. @returns the error in the form that callers see: the group's own failure where it has one soon.
  std::exception_ptr report(std::string const& reason);

  WorkTitle title_;
  bool is_on_cpu_;
  std::weak_ptr<GroupHandle> group_;
  std::optional<FinishingTouch> touch_;
  std::once_flag is_finished_;
  std::once_flag has_error_;
  std::chrono::steady_clock::time_point created_ = std::chrono::steady_clock::now();
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::condition_variable has_started_;
  // Guarded by the base's mutex_, as exception_ is.
  bool is_settled_ = false;
  ReductionWatch::Entry watch_entry_;  ///< Null once settled.
  c10::intrusive_ptr<c10d::Work> inner_;
};

}  // namespace headway::c10d_backend
