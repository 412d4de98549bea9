// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "group/background_progress.hpp"
#include "group/callback_thread.hpp"
#include "group/group_channels.hpp"
#include "group/peer_reports.hpp"
#include "group/survivors.hpp"
#include "group/waiters.hpp"
#include "headway/base/log.hpp"
#include "headway/comm/group.hpp"
#include "observe/group_observer.hpp"

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headway::comm {

/// One rank's end of a group: one lock and one endpoint, the channels on top, the threads that wait, and the first
/// failure. Group, GroupAdmin and GroupMonitor are thin classes over it.
///
/// Lock order: ProgressThread's mutex, then the group's lock. Callbacks of operations run on the group's callback
/// thread, with neither lock held. The group's lock guards all mutable members but the atomics. A function needs it,
/// held by a ProgressLock, unless its comment says otherwise.
class GroupCore final : private ArrivalSink {
 public:
  /// `progress_thread` may be null: then only calls make progress, as tests that replay a schedule need.
  /// `rules`: decisions of the protocol, which a build of the tests breaks one at a time.
  GroupCore(std::unique_ptr<Endpoint> endpoint, GroupOptions options, ReceiveLayout layout,
            std::shared_ptr<ProgressThread> progress_thread, ProtocolRules const& rules);
  ~GroupCore() override;
  GroupCore(GroupCore const&) = delete;
  GroupCore& operator=(GroupCore const&) = delete;

  /// One call into the group. Holds the lock. At its end it submits puts and tells the progress thread what it needs to
  /// do.
  class ProgressLock {
   public:
    explicit ProgressLock(GroupCore& core);
    ~ProgressLock() { core_.end_call(); }
    ProgressLock(ProgressLock const&) = delete;
    ProgressLock& operator=(ProgressLock const&) = delete;
    /// Releases the lock for a moment if another thread waits for it.
    void yield_to_waiters();
    /// Releases the lock for a moment and yields the core.
    void yield();
    [[nodiscard]] std::unique_lock<std::mutex>& mutex_lock() { return lock_; }

   private:
    GroupCore& core_;
    std::unique_lock<std::mutex> lock_;
  };

  // Valid without the lock.

  [[nodiscard]] GroupOptions const& options() const { return options_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  /// Timeout of operations that start from now on.
  [[nodiscard]] std::chrono::milliseconds timeout() const { return timeout_; }
  [[nodiscard]] bool has_failed() const { return failed_; }
  [[nodiscard]] bool has_observer() const { return observer_ != nullptr; }
  /// @throws UsageError, which begins with `what`.
  void expect_peer(int peer, char const* what) const;
  void expect_channel(int channel, char const* what) const;
  [[nodiscard]] std::mutex& mutex() { return mutex_; }

  // Channels and progress.

  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }
  [[nodiscard]] GroupChannels& channels() { return channels_; }
  [[nodiscard]] ChannelContext& context() { return channels_.context(); }
  [[nodiscard]] ChannelContext const& context() const { return channels_.context(); }
  /// Polls the endpoint and moves all channels on. @returns whether poll() found anything.
  bool progress();
  /// Posts and completes what the all-to-all channels can, and releases the completed operations.
  void complete_all_to_alls();
  /// Revokes overdue RTS (GroupChannels::revoke_rts()). @returns when to call again.
  Deadline revoke_rts(Clock::time_point now);

  // Waiting.

  Status wait(ProgressLock& lock, OperationState& operation, std::optional<std::chrono::milliseconds> timeout);
  /// wait() that the lag advisor, which recommends max_lag, does not count as a wait of the calling thread.
  Status wait_unobserved(ProgressLock& lock, OperationState& operation,
                         std::optional<std::chrono::milliseconds> timeout);
  /// Runs `callback` on the callback thread once `operation` is done. @returns false, with `callback` unchanged, if it
  /// is done within `poll_time`: then the caller runs it.
  [[nodiscard]] bool call_when_done(ProgressLock& lock, OperationState& operation, std::function<void()>& callback,
                                    std::chrono::microseconds poll_time);
  [[nodiscard]] bool has_callbacks() const { return num_callbacks_ > 0; }
  /// See GroupMonitor::on_peer_ahead().
  void on_peer_ahead(int channel, std::function<void(std::uint64_t seq)> callback);
  /// Must the progress thread act on each arrival? Yes for callbacks, and for waiters that leave arrivals to it.
  [[nodiscard]] bool needs_events() const {
    return num_callbacks_ > 0 || num_background_waits_ > 0 || num_ahead_callbacks_ > 0;
  }
  [[nodiscard]] Waiters& waiters() { return waiters_; }

  // Failure.

  [[nodiscard]] Status const& failure() const { return failure_; }
  /// Throws OperationError if the group has failed.
  void throw_if_failed() const;
  /// Fails the group: ends all pending operations with `status`. `says_so`: tells the peers the reason. `level`: of the
  /// log record; a group that this rank has left is not logged.
  void fail(Status status, bool says_so, base::LogLevel level = base::LogLevel::kWarning);
  /// Fails the group after an exception of the progress thread. Takes the lock.
  void fail_in_background(std::string const& reason) noexcept;
  /// Fails the group if an error, a failure of a peer, or a peer that left while it was needed was found.
  void check_failures();
  /// Fails the group if an operation is late, a receive is stalled too long, or a symptom found no cause.
  void check_deadlines(Clock::time_point now);
  /// Calls `callback` once when the group fails (GroupAdmin::on_failure()).
  void on_failure(GroupAdmin::FailureCallback callback);
  [[nodiscard]] PeerReports const& peer_reports() const { return peer_reports_; }
  /// Tells the peers once that this rank leaves.
  void send_leave();
  /// Tells `peer` that this rank takes no more messages of it.
  void send_refusal(int peer);
  /// Sends an OOB message to all peers.
  void send_oob_to_peers(std::string_view text);
  void tell_failure_to_peers() noexcept;
  [[nodiscard]] Survivors& survivors() { return survivors_; }
  /// Number of operations completed when the group failed.
  [[nodiscard]] Progress const& progress_at_failure() const { return progress_at_failure_; }

  // Observer: a device group, whose operations use CUDA instead of the endpoint but share the limits and failures.

  void attach(GroupObserver& observer);
  /// Takes the lock.
  void detach(GroupObserver& observer) noexcept;
  /// Sends `text` to the observer of `peer`.
  void send_to_observer(int peer, std::string_view text);
  /// Tells the observer of a failed group again.
  void remind_observer() noexcept;

  /// All flight records. Makes no progress.
  [[nodiscard]] std::vector<FlightRecord> flight_records();

 private:
  // ArrivalSink
  void arrived(int source, Tag tag) override { channels_.arrived(source, tag); }
  void on_oob(int peer, std::string_view text) override;
  void lost(int peer, std::string_view reason) override;

  void end_call() noexcept;
  /// Submits the callbacks of on_peer_ahead() for which peers have gone on.
  void tell_of_peers_ahead();
  void end_ahead_callbacks() noexcept;
  /// Wakes the waiters of operations that are done, and hands their callbacks to the callback thread. Clears `done`.
  void release(GroupChannels::Operations& done);
  /// Sleeps until `until`, an event, or the end of `operation`.
  void sleep(ProgressLock& lock, Waiters::Waiter& waiter, Deadline until, OperationState const& operation);
  /// Adds a slow wait to the statistics and the flight record. `from`: the epoch if the wait was fast.
  void record_wait(OperationState& operation, Clock::time_point from);
  /// Earliest deadline of all pending operations. Deadline::max() if the last look was too recent.
  [[nodiscard]] Deadline earliest_deadline(Clock::time_point now);
  /// Does any pending operation need `peer`?
  [[nodiscard]] bool needs(int peer) const;
  /// Describes what the first incomplete operation waits for.
  [[nodiscard]] std::string describe_missing() const;
  /// Calls the callback of on_failure().
  void report_failure();
  /// Passes a text of a peer's observer to this rank's observer, or keeps it until there is one.
  void on_observer_oob(int peer, std::string_view text) noexcept;
  /// Keeps the records of pending operations for flight_records(), before fail() ends these.
  void keep_failed_records();

  GroupOptions const options_;
  std::atomic<std::chrono::milliseconds> timeout_;
  /// Process that made the group; a forked child must not use it.
  pid_t const owner_;
  int rank_, size_;
  /// More ranks than cores on this host: waiters yield instead of spinning, and leave arrivals to the progress thread.
  bool cores_are_shared_;

  std::mutex mutex_;
  std::atomic<int> num_waiting_ = 0;  ///< Threads that wait for the lock.
  GroupChannels channels_;
  Waiters waiters_;
  GroupChannels::Operations completed_;  ///< Scratch memory of complete_all_to_alls().
  int num_callbacks_ = 0;                ///< Callbacks registered whose operation is not done.
  int num_background_waits_ = 0;         ///< Waiters that sleep while the progress thread acts on arrivals.

  /// First failure. Written once, before failed_.
  Status failure_;
  std::atomic<bool> failed_ = false;
  std::vector<FlightRecord> failed_records_;  ///< Records of operations that were pending when the group failed.
  Progress progress_at_failure_;
  /// Callback of on_failure(). Null: none, or already called.
  GroupAdmin::FailureCallback on_failure_;
  PeerReports peer_reports_;
  Survivors survivors_;
  bool has_left_ = false;                ///< This rank sent its leave message.
  Clock::time_point symptom_seen_at_{};  ///< When a symptom was first seen; the epoch: never.
  Clock::time_point deadlines_due_{};    ///< When deadlines must be looked at next.

  /// A callback of on_peer_ahead(), and the number of the last all-to-all that it was called with, plus 1.
  struct AheadCallback {
    /// Shared with calls that wait on the callback thread, which may outlive the group.
    struct Call {
      std::function<void(std::uint64_t seq)> function;
      std::atomic<bool> has_ended = false;  ///< It was replaced, or the group has failed.
    };
    std::shared_ptr<Call> call;
    std::uint64_t num_told = 0;
  };
  std::vector<AheadCallback> ahead_callbacks_;  ///< (channels)
  int num_ahead_callbacks_ = 0;                 ///< Callbacks that are set.

  std::atomic<GroupObserver*> observer_ = nullptr;  ///< Changed and called under the lock only.
  /// Texts of peers' observers that came before this rank had an observer: (peer, text).
  std::vector<std::pair<int, std::string>> early_oob_;

  BackgroundProgress background_;
  CallbackThread callbacks_;  ///< Last member: all others exist until the last callback has run.
};

}  // namespace headway::comm
