// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reduction/delegated_work.hpp"
#include "reduction/reduction_watchdog.hpp"
#include "torch_headers.hpp"

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace headway::c10d_backend {

/// Passes reductions to another backend, created in the background at the first reduction. Many groups never reduce,
/// and creating the backend involves all ranks, for which the start of an operation must not wait.
class ReductionDelegate final {
 public:
  /// Creates the backend. It may block until all ranks take part.
  using Factory = std::function<c10::intrusive_ptr<c10d::Backend>()>;
  /// Starts one operation on the backend.
  using Call = std::function<c10::intrusive_ptr<c10d::Work>(c10d::Backend&)>;

  /// A failure of `group` fails the pending reductions.
  ReductionDelegate(Factory factory, std::weak_ptr<GroupHandle> group);
  ReductionDelegate(ReductionDelegate const&) = delete;
  ReductionDelegate& operator=(ReductionDelegate const&) = delete;
  ~ReductionDelegate();

  /// Starts `call` as `work`, after all earlier calls. `fail_group` is called with the reason if the backend cannot be
  /// created.
  /// @throws the exception of `call`, unless the backend is still being created; c10::DistBackendError if its creation
  /// has failed, or if the creating thread cannot be started. In the latter case the next call tries again.
  void start(c10::intrusive_ptr<DelegatedWork> const& work, Call call,
             std::function<void(std::string const&)> fail_group);
  /// The backend, created now if needed; null if `timeout` passes first.
  /// @throws c10::DistBackendError if creating it failed.
  c10::intrusive_ptr<c10d::Backend> backend(std::chrono::milliseconds timeout);
  /// Changes the backend's timeout, now or as soon as it exists.
  void set_timeout(std::chrono::milliseconds timeout);
  /// Aborts the backend if it exists: its pending work fails.
  void abort();
  /// Leaves the backend if it exists, together with the other ranks.
  void shutdown();
  /// Ends the backend and its threads with the program.
  void end_with_program();
  /// Leaks all state, for a forked child, in which the backend's threads do not exist.
  void leak();

 private:
  struct State;

  /// Calls the backend if it exists and the queue is empty; else queues the call.
  void start_or_queue(c10::intrusive_ptr<DelegatedWork> const& work, Call call,
                      std::function<void(std::string const&)> fail_group);

  std::shared_ptr<State> state_;
  std::shared_ptr<ReductionWatchdog> watchdog_;
};

}  // namespace headway::c10d_backend
