// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "channel/progress_thread.hpp"

#include <atomic>
#include <memory>

namespace headway::comm {

class Endpoint;
class GroupCore;

/// A group's work on the progress thread. background_progress.cpp explains it. Used under the group's lock, except by
/// the progress thread.
class BackgroundProgress final : private BackgroundWork {
 public:
  /// `thread` may be null: then only calls make progress. Before start(), the thread does not know the group.
  BackgroundProgress(GroupCore& core, Endpoint const& endpoint, std::shared_ptr<ProgressThread> thread);
  /// Begin and end the work. Not under the group's lock.
  void start();
  void stop();

  /// Tells the progress thread how much the group needs it now. Every call into the group ends with this.
  void update();
  /// Asks for a step soon. Takes no lock.
  void notify_soon() noexcept;
  /// From begin_wait() to end_wait() a thread takes the socket input, so the progress thread leaves it alone. Calls
  /// nest.
  void begin_wait() noexcept;
  void end_wait() noexcept;
  /// False: only calls make progress.
  [[nodiscard]] bool has_thread() const { return thread_ != nullptr; }

 private:
  // BackgroundWork
  [[nodiscard]] BackgroundNeed background_need() const override { return need_.load(std::memory_order_relaxed); }
  void background_step() noexcept override;
  [[nodiscard]] bool wants_regular_steps() const override;
  [[nodiscard]] int control_fd() const override { return control_fd_; }
  [[nodiscard]] int activity_fd() const override { return activity_fd_; }

  [[nodiscard]] BackgroundNeed current_need() const;
  /// Let the progress thread watch activity_fd(), or stop it.
  void watch();
  void unwatch();

  GroupCore& core_;
  int control_fd_, activity_fd_;
  bool receives_by_polling_;  ///< Puts of peers reach this rank only while it polls (tcp).
  bool wants_keep_alive_;     ///< Lost peers show only when something is sent, so a step each second sends something.
  /// Last need told to the progress thread.
  std::atomic<BackgroundNeed> need_ = BackgroundNeed::kNone;
  bool serves_callbacks_ = false;  ///< A callback was registered since the endpoint was armed.
  bool is_armed_ = false;          ///< The endpoint is armed for the progress thread, which watches activity_fd().
  int num_idle_steps_ = 0;         ///< Steps since events were last needed.
  int num_waits_ = 0;              ///< Calls of begin_wait() without an end_wait() yet.
  std::shared_ptr<ProgressThread> thread_;
};

}  // namespace headway::comm
