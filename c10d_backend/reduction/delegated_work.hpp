// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "group/group_handle.hpp"
#include "reduction/reduction_watchdog.hpp"
#include "torch_headers.hpp"
#include "work/op_info.hpp"

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace headway::c10d_backend {

/// Fails a group because its delegate, the backend that reduces for it, failed with `text`, unless the group itself
/// fails within `patience`. When a rank dies, the delegate sees a broken connection, and the group learns a moment
/// later which rank it was.
/// @returns the group's own failure; none if it had none or no longer exists.
std::optional<comm::Status> fail_group_for_delegate(std::weak_ptr<GroupHandle> const& group, std::string const& text,
                                                    std::chrono::milliseconds patience);
/// Time within which the group detects a lost rank.
inline constexpr std::chrono::seconds kDetectionTime{1};

/// Step that a headway group adds to a reduction of its delegate. It runs once, before anyone sees the reduction
/// complete.
struct Epilogue {
  std::function<void()> run;        ///< Copies results from temporaries to the caller's tensors.
  std::vector<at::Tensor> results;  ///< The caller's outputs: value of result() and of the future.
};

/// A reduction that another backend (Gloo, NCCL) does for a headway group. It may exist before that backend.
class DelegatedWork final : public c10d::Work {
 public:
  /// `inputs` are for profilers and must not be empty. A failure of the reduction fails `group`, and the other way
  /// round.
  DelegatedWork(OpInfo const& op, int rank, std::vector<at::Tensor> const& inputs, std::weak_ptr<GroupHandle> group,
                std::optional<Epilogue> epilogue);

  /// Binds the delegate's work `inner`, which is running. Either start() or refuse() is called, once.
  void start(c10::intrusive_ptr<c10d::Work> inner);
  /// Completes the work with `error`, because the reduction could not be started.
  void refuse(std::exception_ptr error);
  /// Like refuse(), with the failure of the group if it has failed, else with `reason`.
  void refuse_for(std::string const& reason);
  /// Lets the watchdog fail this work. Call it before start().
  void set_watchdog_entry(ReductionWatchdog::Entry entry);
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
  /// Completes after the epilogue, or with the error that wait() throws.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  float getDuration() const override;
  std::uint64_t getSequencenumber() const override;
#if HEADWAY_TORCH_HAS_COMPLETION_HOOKS
  std::uint64_t getCompletionKey() const override { return op_.key; }
  std::chrono::milliseconds getTimeout() const override { return op_.timeout; }
#endif

 private:
  c10::intrusive_ptr<c10d::Work> inner_if_started() const;
  /// Waits until start() or refuse(). @throws the error of refuse(), or c10::DistBackendError at the deadline.
  c10::intrusive_ptr<c10d::Work> wait_for_inner(std::chrono::steady_clock::time_point deadline);
  /// @throws c10::DistBackendError if the group has failed: a delegate that lacks a rank may wait until its own
  /// timeout.
  void throw_if_group_failed();
  /// Waits in slices of kSignalSlice, to check for Ctrl-C and for a failed group.
  void wait_in_slices(c10d::Work& inner, std::chrono::steady_clock::time_point deadline);
  /// Runs the epilogue, once.
  void run_epilogue_once();
  /// Completes this work from the delegate's future, which is done.
  void on_reduced(c10::ivalue::Future& reduced);
  /// Completes the future with `error`, or with `value` if that is null. Has effect only once.
  void settle(std::exception_ptr const& error, c10::IValue value);
  /// Stores the first error, made by `make`, and returns the stored one.
  template <typename Make>
  std::exception_ptr keep_error(Make&& make);
  /// Fails the group. @returns the error for callers: the group's own failure if it has one within kDetectionTime.
  std::exception_ptr fail_group(std::string const& reason);

  OpInfo op_;
  bool is_on_cpu_;  ///< If false, the delegate's wait() makes the stream wait, not the host.
  std::weak_ptr<GroupHandle> group_;
  std::optional<Epilogue> epilogue_;
  std::once_flag epilogue_once_;
  std::once_flag error_once_;
  std::chrono::steady_clock::time_point created_ = std::chrono::steady_clock::now();
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::condition_variable has_started_;
  // Guarded by the base class's mutex_, as exception_ is.
  bool is_settled_ = false;
  ReductionWatchdog::Entry watchdog_entry_;  ///< Null once settled.
  c10::intrusive_ptr<c10d::Work> inner_;     ///< The delegate's work; null before start().
};

}  // namespace headway::c10d_backend
