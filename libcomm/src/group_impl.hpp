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

/// How the ranks of a group know each other.
struct Acquainted {
  std::vector<std::string> addresses = {};  ///< (size) Of the ranks' hosts, or empty; "": this host's.
  std::string own_address = "127.0.0.1";    ///< At which peers reach this rank.
  std::string generation = {};              ///< Of the attempt to connect; no other group has it.
};

/// The group behind Group::connect(): one lock, one endpoint, the rings and the pair channel on top of it.
///
/// Lock order: ProgressThread's mutex, then mutex_. Callbacks of operations run on the group's callback thread, without
/// either.
///
/// One of the threads that wait for operations sleeps in the endpoint: the leader. It takes the wake-ups and polls for
/// all. The others sleep on `followers_changed_` until their operation is done or the leader leaves, which makes one of
/// them the leader. tests/model/sleeping.pml checks that no wake-up is lost.
class GroupImpl final : public Group, private ArrivalSink, private BackgroundWork {
 public:
  /// Without a progress thread only calls move work on, as tests that replay a schedule need it.
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
  /// A caller's visit: holds the lock; on leaving, sends what was put and says what the progress thread must do.
  class Visit {
   public:
    explicit Visit(GroupImpl& group);
    ~Visit();
    Visit(Visit const&) = delete;
    Visit& operator=(Visit const&) = delete;
    /// Lets another visitor in, if one waits.
    void give_way();
    /// Lets other visitors and other threads of the core in.
    void yield();
    [[nodiscard]] std::unique_lock<std::mutex>& lock() { return lock_; }

   private:
    GroupImpl& group_;
    std::unique_lock<std::mutex> lock_;
  };

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
  /// @returns whether anything came.
  bool progress();
  void complete_rings();
  void finish(OperationState& operation);
  void release(std::vector<std::shared_ptr<OperationState>>& done);
  /// Sends what was offered in vain. @returns when to look again.
  Deadline revoke_offers(Clock::time_point now);
  /// One thread's part in waiting: whether it is the leader, until it leaves.
  class Waiter;
  void sleep(Visit& visit, Waiter& waiter, Deadline deadline, OperationState const& operation);
  void sleep_as_leader(Visit& visit, Deadline deadline, OperationState const& operation);
  void wake_waiters();
  void poll_briefly(Visit& visit, OperationState const& operation, std::chrono::microseconds time);
  void leave_visit() noexcept;
  void note_wait(OperationState& operation, Clock::time_point from);
  void arm();
  void disarm();
  void update_background();
  void watch_in_background();
  void unwatch_in_background();
  [[nodiscard]] BackgroundNeed current_need() const;

  void fail_in_background(std::string const& reason) noexcept;

  // group_failure.cpp
  static constexpr std::string_view kGoodbye = "\x01goodbye";
  /// From a rank in deliver(): it takes no message of the peer any more. Of two ranks that both leave without having
  /// received what the other one sent, each would wait for the other.
  static constexpr std::string_view kRefusal = "\x01takes no more";
  void throw_if_failed() const;
  void check_failures();
  void check_deadlines(Clock::time_point now);
  /// The first deadline of all pending operations; Deadline::max() where the last look was a short while ago.
  [[nodiscard]] Deadline earliest_deadline(Clock::time_point now);
  [[nodiscard]] bool needs(int peer) const;
  [[nodiscard]] std::string describe_missing() const;
  /// An operation that only waits for peers to take what this rank sends; null if there is none.
  [[nodiscard]] std::shared_ptr<OperationState> find_undelivered() const;
  [[nodiscard]] std::string describe_undelivered(OperationState const& operation) const;
  void say_what_is_not_taken();
  /// A peer that will not take what it is to get by `operation`; -1: there is none.
  [[nodiscard]] int find_refusal(OperationState const& operation, Clock::time_point now) const;
  void say_goodbye();
  void fail(Status status, bool says_so);
  /// Calls the callback of on_failure().
  void report_failure();
  void tell_peers(std::string_view text);
  [[nodiscard]] Progress current_progress() const;
  void hear(int peer, std::string_view text) noexcept;

  // flight_records.cpp
  [[nodiscard]] std::vector<FlightRecord> pending_flight_records(FlightClock::Reading const& clock);
  [[nodiscard]] FlightRecord pending_flight_record(OperationState const& operation, FlightClock::Reading const& clock);
  /// All records, without progress.
  [[nodiscard]] std::vector<FlightRecord> all_flight_records();
  void note_failed_records();

  // shrink.cpp
  class MemberStore;
  void agree(std::chrono::milliseconds timeout);
  std::optional<ShrunkGroup> connect_members(std::chrono::milliseconds timeout);
  /// Lets the peers say something. @throws OperationError if one goes on without this rank.
  void listen(Visit& visit);

  std::shared_ptr<OperationState> start_pair_operation(Verb verb, std::uint64_t number, PairFlight flight);
  /// `root`: -1 where there is none.
  Collective start_collective(Verb verb, int root, FlightEntry const& flight);
  void send_part(Collective const& collective, int peer, std::span<std::byte const> block);
  void receive_part(Collective const& collective, int peer, std::span<std::byte> block);
  OperationPtr finish_start(std::shared_ptr<OperationState> operation);
  OperationPtr start_receive(std::span<std::byte> block, int peer, std::uint64_t match, DataType type);
  void expect_peer(int peer, char const* what) const;
  void expect_channel(int channel, char const* what) const;

  GroupOptions const options_;
  std::atomic<std::chrono::milliseconds> timeout_;  ///< Of operations that start from now on.
  pid_t const owner_;
  int rank_, size_;
  Acquainted const acquainted_;
  int lifeline_fd_, activity_fd_;
  bool cores_are_shared_;
  bool lands_by_polling_;
  bool wants_keep_alive_;

  std::mutex mutex_;
  std::atomic<int> num_waiting_ = 0;  ///< Visitors that another one keeps out.
  Wire wire_;
  Transfers transfers_;
  PairChannel pair_;
  std::vector<std::unique_ptr<RingChannel>> rings_;
  std::vector<std::shared_ptr<OperationState>> pair_operations_;  ///< Pending operations made of pair messages.
  std::uint64_t num_pair_operations_ = 0;
  std::vector<std::shared_ptr<OperationState>> completed_;  ///< Scratch of complete_rings().
  int num_callbacks_ = 0;                                   ///< Registered and not due yet.
  int num_armed_ = 0;
  bool background_armed_ = false;  ///< The endpoint is armed and its activity_fd() watched by the progress thread.
  int num_idle_steps_ = 0;         ///< Steps of the progress thread since it was last needed for events.
  bool has_leader_ = false;
  OperationState const* leader_sleeps_for_ = nullptr;  ///< Null: the leader is not in the endpoint's sleep().
  int num_followers_ = 0;
  std::unique_ptr<std::condition_variable> followers_changed_ = std::make_unique<std::condition_variable>();
  Status failure_;
  std::atomic<bool> failed_ = false;
  std::vector<FlightRecord> failed_records_;  ///< What was pending when the group failed.
  FailureCallback on_failure_;
  std::atomic<GroupCompanion*> companion_ = nullptr;  ///< Changes and is called under the lock.
  std::vector<std::pair<int, std::string>> unheard_;  ///< What companions of peers said before this one was there.
  Status pending_failure_;                            ///< Found inside poll(), acted upon after it.
  bool pending_failure_is_ours_ = false;
  Progress progress_at_failure_;
  Survivors survivors_;
  bool is_shrunk_ = false;                  ///< By a shrink() that runs, or has made its group.
  std::vector<Clock::time_point> left_at_;  ///< (size) When a peer said goodbye.
  std::vector<bool> has_gone_;              ///< (size) Said goodbye, and all that it put has arrived.
  bool any_gone_ = false;
  bool has_left_ = false;                      ///< This rank said goodbye.
  std::vector<bool> refuses_;                  ///< (size) This rank said kRefusal to the peer.
  std::vector<Clock::time_point> refused_at_;  ///< (size) When the peer said it.
  Clock::time_point symptom_seen_at_{};
  Clock::time_point deadlines_due_{};  ///< When the deadlines of operations are looked at next.
  std::atomic<BackgroundNeed> need_ = BackgroundNeed::kNone;
  std::shared_ptr<ProgressThread> progress_thread_;
  CallbackThread callbacks_;  ///< The last member, so that all others are there until the last callback has run.
};

}  // namespace headway::comm
