// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bootstrap/connector.hpp"
#include "bootstrap/control_socket.hpp"
#include "bootstrap/failure.hpp"
#include "bootstrap/handshake.hpp"
#include "bootstrap/store_keys.hpp"
#include "headway/base/file_descriptor.hpp"
#include "headway/comm/endpoint.hpp"
#include "headway/comm/group_options.hpp"
#include "headway/comm/store.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headway::comm {

/// Connects one rank with all others, in the thread that calls run().
///
/// 1. Rank 0 publishes its address (StoreKeys). Every other rank connects to it and sends its own address. The
/// connection proves that the announcement does not belong to an earlier attempt.
/// 2. When rank 0 has all addresses, it sends all of them to every rank.
/// 3. Each rank connects to all lower ranks at the same time, and accepts from the higher ones.
/// 4. A rank that has all connections says so to all ranks (kReady), and is done when all have said so.
///
/// Each rank reads one small value from the store; everything else goes over authenticated connections. One epoll loop
/// serves listeners, handshakes and connections. Connections that fail the handshake get the reason, are counted, and
/// are dropped. The first failure ends the bootstrap here and, through the existing connections, at all ranks.
/// bootstrap.cpp explains the algorithm.
class Bootstrap {
 public:
  struct Listener {
    base::FileDescriptor socket;
    bool local = false;  ///< AF_UNIX socket, so whoever connects is on this host; else TCP.
  };

  /// `self.secret` is empty if none was given. `own.instance` equals `self.instance`. `keys` and `options` must
  /// outlive it.
  Bootstrap(HandshakeSelf self, RankAddress own, std::vector<Listener> listeners, StoreKeys& keys,
            GroupOptions const& options, Deadline deadline);
  ~Bootstrap();
  Bootstrap(Bootstrap const&) = delete;
  Bootstrap& operator=(Bootstrap const&) = delete;

  /// @returns the connections by rank, non-blocking.
  /// @throws BootstrapError; exceptions of options.while_connecting pass through.
  [[nodiscard]] std::vector<ControlSocket> run();
  /// Tells the others that this rank failed before it was reachable. Called instead of run(). Best effort, within 2 s.
  void send_early_failure(BootstrapFailure const& failure) noexcept;
  /// Generation of the current attempt; empty while unknown.
  [[nodiscard]] std::string generation() const { return announcement_ ? announcement_->generation() : ""; }

 private:
  /// An accepted connection that has not authenticated itself.
  struct Incoming {
    base::FileDescriptor socket;
    bool local;
    Handshake handshake;
    Deadline deadline;
    std::vector<std::byte> output{};
    bool waits_for_room = false;  ///< True if its socket is full; its output continues on EPOLLOUT.
    bool lingering = false;       ///< Refused: its input is dropped until it closes, so that it can read the reason.
  };
  /// A connection whose handshake is done.
  struct Member {
    InstanceId instance{};  ///< Random number of the peer's process: a restarted rank has another one.
    base::FileDescriptor socket;
    bool local = false;
    MessageReader reader{kMaxMemberMessageBody};
    std::vector<std::byte> output{};
    bool waits_for_room = false;
    bool sent_ready = false;  ///< This rank has sent kReady.
    bool is_ready = false;    ///< The peer has sent kReady.
  };
  /// A lower rank that this one is connecting to.
  struct Wanted {
    RankAddress rank_address;
    std::optional<Connector> connector;     ///< Empty between two tries.
    Deadline retry_at{};                    ///< Time of the next try, if there is no connector.
    std::chrono::milliseconds patience{5};  ///< Pause before the next try. Doubles with each failure.
  };

  /// Interval between checks of deadlines and interrupts; also the longest wait for the store.
  static constexpr std::chrono::milliseconds kTick{100};
  /// Interval of the look for a newer announcement.
  static constexpr std::chrono::milliseconds kLookAgain{500};
  /// Time after which an announcement that contradicts this rank's options counts as one of this attempt, not as an old
  /// one.
  static constexpr std::chrono::seconds kStaleTime{2};

  /// Source of an epoll event: its kind, and an index, socket or rank.
  enum class EventKind : std::uint32_t { kListener, kIncoming, kWanted, kMember };
  static constexpr std::uint64_t label_of(EventKind kind, int which) {
    return std::uint64_t{static_cast<std::uint32_t>(kind)} << 32 | static_cast<std::uint32_t>(which);
  }
  static constexpr std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  static std::string rank_name(int rank) { return "rank " + std::to_string(rank); }

  /// Rank 0 publishes its announcement and opens its listeners.
  void begin();
  /// One round of the event loop.
  void step();
  /// Periodic work, every kTick: interrupts, deadlines, news in the store.
  void tick();
  [[nodiscard]] bool is_done() const;
  /// Dispatches one epoll event.
  void handle(std::uint64_t label, std::uint32_t events);
  void watch(int fd, std::uint64_t label, std::uint32_t events, int operation);
  void open_listeners();

  // Find rank 0.
  void look_for_rank_0();
  /// Drops the connection to an earlier rank 0, if any, and connects to the one of `announcement`.
  void adopt(Announcement announcement);
  void use_secret_of(Announcement const& announcement);
  /// Reads the announcement again. @returns whether rank 0 has announced another attempt, which this rank then follows.
  [[nodiscard]] bool follow_newer_announcement();
  /// @throws BootstrapError if rank 0 posted that this attempt failed.
  void find_failure_of_rank_0();
  /// @throws SystemError if transport shm was chosen and `peer` is on another host.
  void expect_same_host(int peer, RankAddress const& rank_address) const;

  // Connect to lower ranks.
  void connect_with(int peer, RankAddress rank_address);
  /// Advances the connector of `peer`, and joins it or schedules a retry when the connector is done.
  void advance(int peer);
  /// Connects again after a failed try. @throws RefusedError if the peer rejected the secret.
  void retry(int peer, Wanted& wanted);
  /// Advances connectors and retries whose time has come. Sets next_timer_.
  void advance_timers();

  // Accept higher ranks.
  void accept_from(Listener const& listener);
  /// Drops the oldest unauthenticated connection if there are too many.
  void make_room();
  /// Both return whether the connection is still open.
  bool read_handshake(Incoming& incoming);
  bool flush_output(Incoming& incoming);
  /// Advances one handshake. @returns whether the connection stays in incoming_.
  bool advance(Incoming& incoming);
  /// Acts on the outcome of a handshake. @returns whether the connection stays in incoming_.
  bool conclude(Incoming& incoming);
  void count_refusal(std::string const& why);

  // Connected ranks.
  /// Makes an authenticated connection a member.
  void join(int peer, InstanceId const& instance, base::FileDescriptor socket, bool local);
  /// Reads at most one message.
  void read_messages(int peer);
  /// True if both sides are ready: further input belongs to the transports.
  [[nodiscard]] static bool is_done_with(Member const& member);
  void leave_rest_to_transports(Member const& member);
  void on_message(int peer, Message const& message);
  void on_rank_address(int peer, Message const& message);
  void on_rank_addresses(Message const& message);
  void on_closed(int peer);
  void send(int peer, BootstrapMessageKind kind, std::span<std::byte const> body);
  void flush(int peer);
  /// @throws SystemError if too few descriptors are left for the transports.
  void expect_files_for_transport() const;
  void send_ready();
  void check_deadlines();
  /// Keeps the first failure, which ends run().
  void record_failure(BootstrapFailure failure);
  void fail_here(std::string text) { record_failure({.origin = self_->rank, .text = std::move(text)}); }
  void send_failure(BootstrapFailure const& failure) noexcept;
  /// Logs who is missing, if connecting takes long.
  void log_slow_start();
  /// @param when "in time" or "yet", for the text.
  [[nodiscard]] std::string who_is_missing(std::string_view when) const;
  [[nodiscard]] std::vector<ControlSocket> take_control_sockets();

  /// Replaced when the secret changes; handshakes in progress hold the old one.
  std::shared_ptr<HandshakeSelf> self_;
  bool const was_given_secret_;
  RankAddress const own_;
  std::vector<Listener> listeners_;
  std::vector<SocketAddress> sources_;  ///< Local addresses to connect from; empty means any.
  StoreKeys& keys_;
  GroupOptions const& options_;
  Deadline const started_at_, deadline_;
  Deadline next_slow_note_;  ///< Time of the next warning about a slow start.
  base::FileDescriptor epoll_;
  Deadline next_tick_, next_timer_ = Deadline::max();

  std::optional<Announcement> announcement_;
  Deadline announced_at_{};  ///< Time at which this rank first saw the announcement.
  Deadline next_look_{};     ///< Time of the next look for a newer announcement or a failure.
  std::string refusal_;      ///< Reason why rank 0 refused this rank.

  std::map<int, Incoming> incoming_;            ///< By socket, which is also the key in `label`.
  std::map<int, Wanted> wanted_;                ///< By rank.
  std::vector<std::optional<Member>> members_;  ///< By rank; empty: not connected yet.
  std::vector<std::string> rank_addresses_;     ///< Rank 0 only: encoded addresses by rank.
  /// By rank: time at which a rank that closed its connection counts as gone.
  std::vector<std::optional<Deadline>> missed_from_;
  std::vector<std::string> absence_reasons_;  ///< By rank: reason why it is not connected yet.
  /// Counts of members, of members that are ready, and (rank 0) of addresses received.
  int num_members_ = 0, num_ready_ = 0, num_rank_addresses_ = 0;
  bool has_opened_listeners_ = false, has_rank_addresses_ = false, has_sent_ready_ = false;
  std::optional<BootstrapFailure> failure_;
  std::uint64_t refusals_ = 0;  ///< Incoming connections that failed the handshake.
  std::string last_refusal_;
};

}  // namespace headway::comm
