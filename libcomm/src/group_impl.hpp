#pragma once

#include "backoff.hpp"
#include "callback_thread.hpp"
#include "group_companion.hpp"
#include "headway/comm/group.hpp"
#include "pair_channel.hpp"
#include "progress_thread.hpp"
#include "ring_channel.hpp"
#include "survivors.hpp"
#include "transfer.hpp"
#include "wire.hpp"

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headway::comm {

/// How this rank reaches the others, as found while connecting.
struct Acquainted {
  std::vector<std::string> addresses = {};  ///< (size) Numeric addresses of the ranks' hosts, or empty. "": this host.
  std::string own_address = "127.0.0.1";    ///< Address at which peers reach this rank.
  std::string generation = {};              ///< Random text of this connection attempt; no other group has it.
};

/// The group behind Group::connect(): one lock and one endpoint, with the channels on top.
///
/// Lock order: ProgressThread's mutex, then mutex_. Callbacks of operations run on the group's callback thread, with
/// neither lock held. `mutex_` guards all mutable members but the atomics.
///
/// Waiting (group_impl.cpp explains it): one of the waiting threads, the leader, sleeps in the endpoint, takes the
/// wake-ups and polls for all. The other waiters, the followers, sleep on `followers_changed_` until their operation is
/// done or the leader leaves; then one of them becomes the leader.
class GroupImpl final : public Group, private ArrivalSink, private BackgroundWork {
 public:
  /// `progress_thread` may be null: then only calls make progress, as tests that replay a schedule need.
  GroupImpl(std::unique_ptr<Endpoint> endpoint, GroupOptions options, LandingLayout layout,
            std::shared_ptr<ProgressThread> progress_thread, Acquainted acquainted = {});
  ~GroupImpl() override;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  [[nodiscard]] GroupOptions const& options() const override { return options_; }
  [[nodiscard]] PeerTraits traits(int peer) const override;
  [[nodiscard]] std::string address(int peer) const override;
  [[nodiscard]] std::string own_address() const override { return acquainted_.own_address; }
  [[nodiscard]] std::string const& generation() const override { return acquainted_.generation; }

  OperationPtr all_to_all_v(AllToAllArgs const& args) override;
  Status all_to_all_v_and_wait(AllToAllArgs const& args) override;
  OperationPtr send(std::span<std::byte const> block, int peer, std::uint64_t match, DataType type) override;
  OperationPtr receive(std::span<std::byte> block, int peer, std::uint64_t match, DataType type) override;
  OperationPtr receive_any(std::span<std::byte> block, std::uint64_t match, DataType type) override;
  OperationPtr broadcast(std::span<std::byte> block, int root, DataType type) override;
  OperationPtr gather(std::span<std::byte const> block, std::span<std::span<std::byte> const> receives, int root,
                      DataType type) override;
  OperationPtr scatter(std::span<std::span<std::byte const> const> sends, std::span<std::byte> block, int root,
                       DataType type) override;
  OperationPtr all_gather(std::span<std::byte const> block, std::span<std::span<std::byte> const> receives,
                          DataType type) override;
  OperationPtr barrier() override;

  Status wait(Operation& operation, std::optional<std::chrono::milliseconds> timeout) override;
  bool test(Operation& operation) override;
  void on_done(Operation& operation, std::function<void()> callback, std::chrono::microseconds poll_time) override;
  void set_timeout(std::chrono::milliseconds timeout) override;
  [[nodiscard]] std::chrono::milliseconds timeout() const override { return timeout_; }
  void set_max_lag(int max_lag, std::optional<int> channel) override;
  [[nodiscard]] int max_lag(int channel) override;
  [[nodiscard]] int recommended_max_lag(int channel) override;
  void abort(std::string const& reason) override;
  Status deliver(std::chrono::milliseconds timeout) override;
  void leave(std::string const& reason) override;
  [[nodiscard]] ShrunkGroup shrink(std::span<int const> ranks_to_exclude, std::chrono::milliseconds timeout) override;
  [[nodiscard]] Status health() override;
  [[nodiscard]] GroupStats stats() override;
  void reset_stats() override;
  void set_trace_capacity(std::size_t capacity) override;
  std::vector<TraceEvent> drain_trace() override;
  [[nodiscard]] std::vector<FlightRecord> flight_records() override;
  void attach(GroupCompanion& companion) override;
  void detach(GroupCompanion& companion) noexcept override;
  void tell(int peer, std::string_view text) override;
  void on_failure(FailureCallback callback) override;

 private:
  /// One call into the group. Holds the lock. At its end it submits puts and tells the progress thread what it needs to
  /// do.
  class Visit {
   public:
    explicit Visit(GroupImpl& group);
    ~Visit();
    Visit(Visit const&) = delete;
    Visit& operator=(Visit const&) = delete;
    /// Releases the lock for a moment if another thread waits for it.
    void give_way();
    /// Releases the lock for a moment and yields the core.
    void yield();
    [[nodiscard]] std::unique_lock<std::mutex>& lock() { return lock_; }

   private:
    GroupImpl& group_;
    std::unique_lock<std::mutex> lock_;
  };

  /// A collective that is being started.
  struct Collective {
    std::shared_ptr<OperationState> operation;
    Match match;
    DataType type;
  };

  // ArrivalSink
  void arrived(int source, Tag tag) override;
  void notice(int peer, std::string_view text) override;
  void lost(int peer, std::string_view reason) override;
  // BackgroundWork
  [[nodiscard]] BackgroundNeed background_need() const override { return need_.load(std::memory_order_relaxed); }
  void background_step() noexcept override;
  [[nodiscard]] bool wants_visits() const override { return (wants_keep_alive_ && !failed_) || companion_ != nullptr; }
  [[nodiscard]] int lifeline_fd() const override { return lifeline_fd_; }
  [[nodiscard]] int activity_fd() const override { return activity_fd_; }

  std::shared_ptr<RingOperation> start_all_to_all_v(AllToAllArgs const& args, bool is_attended);
  Status wait(Visit& visit, OperationState& operation, std::optional<std::chrono::milliseconds> timeout);
  Status wait_untimed(Visit& visit, OperationState& operation, std::optional<std::chrono::milliseconds> timeout);
  /// Polls the endpoint and moves all channels on. @returns whether poll() found anything.
  bool progress();
  /// Posts and completes what the all-to-all channels can, and releases the completed operations.
  void complete_rings();
  /// Completes a pair operation whose last part is done.
  void finish(OperationState& operation);
  /// Wakes the waiters of operations that are done, and hands their callbacks to the callback thread. Clears `done`.
  void release(std::vector<std::shared_ptr<OperationState>>& done);
  /// Revokes overdue offers of all channels (RingChannel::revoke_offers()). @returns when to call again.
  Deadline revoke_offers(Clock::time_point now);
  /// Leadership of one waiting thread, from the first sleep to the end of its wait.
  class Waiter;
  /// Sleeps as leader or as follower.
  void sleep(Visit& visit, Waiter& waiter, Deadline deadline, OperationState const& operation);
  void sleep_as_leader(Visit& visit, Deadline deadline, OperationState const& operation);
  /// Wakes the followers, and the leader if its operation is done.
  void wake_waiters();
  void poll_briefly(Visit& visit, OperationState const& operation, std::chrono::microseconds time);
  void leave_visit() noexcept;
  /// Adds a slow wait to the statistics and the flight record. `from`: the epoch if the wait was fast.
  void note_wait(OperationState& operation, Clock::time_point from);
  /// Count the users of the endpoint's wake-ups: the first arms it, the last disarms it.
  void arm();
  void disarm();
  /// Tells the progress thread how much this group needs it now.
  void update_background();
  /// Let the progress thread watch activity_fd(), or stop it.
  void watch_in_background();
  void unwatch_in_background();
  [[nodiscard]] BackgroundNeed current_need() const;

  /// Fails the group after an exception of the progress thread.
  void fail_in_background(std::string const& reason) noexcept;

  // group_failure.cpp
  static constexpr std::string_view kGoodbye = "\x01goodbye";
  /// From a rank in deliver(): it takes no more messages of the peer. Without it, two leaving ranks that have not
  /// received each other's last message would wait for each other.
  static constexpr std::string_view kRefusal = "\x01takes no more";
  /// Throws OperationError if the group has failed.
  void throw_if_failed() const;
  /// Fails the group if an error, a failure of a peer, or a peer that left while it was needed was found.
  void check_failures();
  /// Fails the group if an operation is late, a receive is stalled too long, or a symptom found no cause.
  void check_deadlines(Clock::time_point now);
  /// Earliest deadline of all pending operations. Deadline::max() if the last look was too recent.
  [[nodiscard]] Deadline earliest_deadline(Clock::time_point now);
  /// Does any pending operation need `peer`?
  [[nodiscard]] bool needs(int peer) const;
  /// Describes what the first incomplete operation waits for.
  [[nodiscard]] std::string describe_missing() const;
  /// An operation that only waits for peers to take data of this rank. Null if there is none.
  [[nodiscard]] std::shared_ptr<OperationState> find_undelivered() const;
  [[nodiscard]] std::string describe_undelivered(OperationState const& operation) const;
  /// Sends kRefusal to the peers that no receive of this rank waits for.
  void say_what_is_not_taken();
  /// A peer that refuses messages, but must still take data of `operation`. -1: there is none.
  [[nodiscard]] int find_refusal(OperationState const& operation, Clock::time_point now) const;
  /// Tells the peers once that this rank leaves.
  void say_goodbye();
  /// Fails the group: ends all pending operations with `status`. `says_so`: tells the peers the reason.
  void fail(Status status, bool says_so);
  /// Calls the callback of on_failure().
  void report_failure();
  /// Sends a notice to all peers.
  void tell_peers(std::string_view text);
  /// Number of operations completed, for shrink().
  [[nodiscard]] Progress current_progress() const;
  /// Passes a text of a peer's companion to this rank's companion, or keeps it until there is one.
  void hear(int peer, std::string_view text) noexcept;

  // flight_records.cpp
  [[nodiscard]] std::vector<FlightRecord> pending_flight_records(FlightClock::Reading const& clock);
  [[nodiscard]] FlightRecord pending_flight_record(OperationState const& operation, FlightClock::Reading const& clock);
  /// All records. Makes no progress.
  [[nodiscard]] std::vector<FlightRecord> all_flight_records();
  /// Keeps the records of pending operations for flight_records(), before fail() ends these.
  void note_failed_records();

  // shrink.cpp
  class MemberStore;
  /// Exchanges claims until all members agree on who they are.
  void agree(std::chrono::milliseconds timeout);
  /// Connects the members. @returns nullopt if that failed because another rank was lost: the members must agree again.
  std::optional<ShrunkGroup> connect_members(std::chrono::milliseconds timeout);
  /// Sleeps briefly, then polls for notices. @throws OperationError if a peer goes on without this rank.
  void listen(Visit& visit);

  std::shared_ptr<OperationState> start_pair_operation(Verb verb, std::uint64_t number, PairFlight flight);
  /// `root` is -1 for a collective without one.
  Collective start_collective(Verb verb, int root, FlightEntry const& flight);
  void send_part(Collective const& collective, int peer, std::span<std::byte const> block);
  void receive_part(Collective const& collective, int peer, std::span<std::byte> block);
  /// Completes an operation without pending parts; else adds it to the pending ones.
  OperationPtr finish_start(std::shared_ptr<OperationState> operation);
  OperationPtr start_receive(std::span<std::byte> block, int peer, std::uint64_t match, DataType type);
  void expect_peer(int peer, char const* what) const;
  void expect_channel(int channel, char const* what) const;

  GroupOptions const options_;
  std::atomic<std::chrono::milliseconds> timeout_;  ///< Timeout of operations that start from now on.
  /// Process that made the group; a forked child must not use it.
  pid_t const owner_;
  int rank_, size_;
  Acquainted const acquainted_;
  int lifeline_fd_, activity_fd_;
  /// More ranks than cores on this host: waiters yield instead of spinning.
  bool cores_are_shared_;
  bool lands_by_polling_;
  bool wants_keep_alive_;

  std::mutex mutex_;
  std::atomic<int> num_waiting_ = 0;  ///< Threads that wait for the lock.
  Wire wire_;
  Transfers transfers_;
  PairChannel pair_;
  std::vector<std::unique_ptr<RingChannel>> rings_;
  /// Pending operations made of pair messages, in no order.
  std::vector<std::shared_ptr<OperationState>> pair_operations_;
  /// Sends and receives started on this rank.
  std::uint64_t num_pair_operations_ = 0;
  std::vector<std::shared_ptr<OperationState>> completed_;  ///< Scratch memory of complete_rings().
  int num_callbacks_ = 0;                                   ///< Callbacks registered whose operation is not done.
  int num_armed_ = 0;                                       ///< Callers of arm() without a disarm() yet.
  bool background_armed_ = false;  ///< The endpoint is armed for the progress thread, which watches activity_fd().
  int num_idle_steps_ = 0;         ///< Background steps since events were last needed.
  bool has_leader_ = false;
  /// Operation that the sleeping leader waits for. Null: the leader is not in the endpoint's sleep().
  OperationState const* leader_sleeps_for_ = nullptr;
  int num_followers_ = 0;
  std::unique_ptr<std::condition_variable> followers_changed_ = std::make_unique<std::condition_variable>();
  /// First failure. Written once, before failed_.
  Status failure_;
  std::atomic<bool> failed_ = false;
  std::vector<FlightRecord> failed_records_;  ///< Records of operations that were pending when the group failed.
  /// Callback of on_failure(). Null: none, or already called.
  FailureCallback on_failure_;
  std::atomic<GroupCompanion*> companion_ = nullptr;  ///< Changed and called under the lock only.
  /// Texts of peers' companions that came before this rank had a companion: (peer, text).
  std::vector<std::pair<int, std::string>> unheard_;
  Status pending_failure_;  ///< Found inside poll(), handled after it.
  /// This rank saw the loss itself and tells the peers.
  bool pending_failure_is_ours_ = false;
  Progress progress_at_failure_;
  Survivors survivors_;
  bool is_shrunk_ = false;                  ///< A shrink() is running or has made its group.
  std::vector<Clock::time_point> left_at_;  ///< (size) When a peer said goodbye; the epoch: it has not.
  std::vector<bool> has_gone_;              ///< (size) The peer said goodbye, and all its puts have arrived.
  bool any_gone_ = false;
  bool has_left_ = false;                      ///< This rank said goodbye.
  std::vector<bool> refuses_;                  ///< (size) This rank sent kRefusal to the peer.
  std::vector<Clock::time_point> refused_at_;  ///< (size) When the peer sent kRefusal; the epoch: it has not.
  /// When a symptom was first seen; the epoch: never.
  Clock::time_point symptom_seen_at_{};
  Clock::time_point deadlines_due_{};  ///< When deadlines must be looked at next.
  /// Last need told to the progress thread.
  std::atomic<BackgroundNeed> need_ = BackgroundNeed::kNone;
  std::shared_ptr<ProgressThread> progress_thread_;
  CallbackThread callbacks_;  ///< Last member: all others exist until the last callback has run.
};

}  // namespace headway::comm
