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

/// Fails a group because its delegate failed with `text`, unless the group itself fails within `patience`. When a rank
/// dies, the delegate sees a broken connection, and the group learns a moment later which rank it was.
/// @returns the group's own failure; none if it had none or no longer exists.
std::optional<comm::Status> fail_by_symptom(std::weak_ptr<GroupHandle> const& group, std::string const& text,
                                            std::chrono::milliseconds patience);
/// Time within which the group detects a lost rank.
inline constexpr std::chrono::seconds kSymptomTime{1};

/// Step that a headway group adds to a reduction of its delegate. It runs once, before anyone sees the reduction
/// complete.
struct FinishingTouch {
  std::function<void()> run;
  std::vector<at::Tensor> results;
};

/// A reduction that another backend (Gloo, NCCL) does for a headway group. It may exist before that backend.
class DelegatedWork final : public c10d::Work {
 public:
  /// `inputs` are for profilers and must not be empty. A failure of the reduction fails `group`, and the other way
  /// round.
  DelegatedWork(WorkTitle const& title, int rank, std::vector<at::Tensor> const& inputs,
                std::weak_ptr<GroupHandle> group, std::optional<FinishingTouch> touch);

  /// Binds the delegate's work `inner`, which is running. Either start() or refuse() is called, once.
  void start(c10::intrusive_ptr<c10d::Work> inner);
  /// Completes the work with `error`, because the reduction could not be started.
  void refuse(std::exception_ptr error);
  /// Like refuse(), with the failure of the group if it has failed, else with `reason`.
  void refuse_for(std::string const& reason);
  /// Lets the watch fail this work. Call it before start().
  void be_watched(ReductionWatch::Entry entry);
  /// Completes the work with the failure of its group. The delegate may run on for a while.
  void fail_with(GroupHandle const& group);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  /// Waits for the delegate. Its failure also fails the headway group and is thrown as DistBackendError.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  /// Completes after the finishing touch, or with the error that wait() throws.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  float getDuration() const override;
  std::uint64_t getSequencenumber() const override;

 private:
  c10::intrusive_ptr<c10d::Work> inner_if_started() const;
  /// Waits until start() or refuse(). @throws the error of refuse(), or c10::DistBackendError at the deadline.
  c10::intrusive_ptr<c10d::Work> wait_for_inner(std::chrono::steady_clock::time_point deadline);
  /// @throws c10::DistBackendError if the group has failed: a delegate that lacks a rank may wait until its own
  /// timeout.
  void throw_if_group_failed();
  /// Waits in slices of kSignalSlice, to check for Ctrl-C and for a failed group.
  void wait_in_slices(c10d::Work& inner, std::chrono::steady_clock::time_point deadline);
  /// Runs the finishing touch, once.
  void finish_once();
  /// Completes this work from the delegate's future, which is done.
  void take_over(c10::ivalue::Future& reduced);
  /// Completes the future with `error`, or with `value` if that is null. Has effect only once.
  void settle(std::exception_ptr const& error, c10::IValue value);
  /// Stores the first error, made by `make`, and returns the stored one.
  template <typename Make>
  std::exception_ptr keep_error(Make&& make);
  /// Fails the group. @returns the error for callers: the group's own failure if it has one within kSymptomTime.
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
  // Guarded by the base class's mutex_, as exception_ is.
  bool is_settled_ = false;
  ReductionWatch::Entry watch_entry_;  ///< Null once settled.
  c10::intrusive_ptr<c10d::Work> inner_;
};

}  // namespace headway::c10d_backend
