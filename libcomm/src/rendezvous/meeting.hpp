#pragma once

#include "file_descriptor.hpp"
#include "headway/comm/endpoint.hpp"
#include "headway/comm/group.hpp"
#include "rendezvous/connector.hpp"
#include "rendezvous/failure.hpp"
#include "rendezvous/handshake.hpp"
#include "rendezvous/lifeline.hpp"
#include "rendezvous/noticeboard.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace headway::comm {

/// Connects one rank with all others, in the thread that calls run().
///
/// 1. Rank 0 publishes where it can be reached (Noticeboard). Every other rank connects with it, and tells it where it
///    can be reached itself. A connection with rank 0 shows that the announcement is not one of an earlier attempt.
/// 2. Once rank 0 knows all ranks, it tells everyone about all.
/// 3. Each rank connects with all lower ones, at the same time, and accepts from the higher ones.
/// 4. Each rank that has all connections says so to all, and is done when all have said so.
///
/// So the store serves one small value per rank, and all else goes over connections that have proved the secret. One
/// epoll loop serves listeners, handshakes in both directions and connections: n ranks cost O(n) per rank. Connections
/// that fail the handshake are told why, counted, and forgotten. The first failure ends the meeting here and, through
/// the connections that exist by then, at all ranks.
class Meeting {
 public:
  struct Listener {
    FileDescriptor socket;
    bool local = false;
  };

  /// `self.secret` is empty if none was given. `own.instance` is that of `self`. `board` and `options` must outlive it.
  Meeting(HandshakeSelf self, Contact own, std::vector<Listener> listeners, Noticeboard& board,
          GroupOptions const& options, Deadline deadline);
  ~Meeting();
  Meeting(Meeting const&) = delete;
  Meeting& operator=(Meeting const&) = delete;

  /// @returns the connections by rank, non-blocking.
  /// @throws RendezvousError, or what options.while_connecting throws.
  [[nodiscard]] std::vector<Lifeline> run();
  /// Tells the others that this rank failed before it could be reached; instead of run(), best effort, within 2 s.
  void tell_early_failure(RendezvousFailure const& failure) noexcept;
  /// The attempt's generation; empty while this rank knows none.
  [[nodiscard]] std::string generation() const { return announcement_ ? announcement_->generation() : ""; }

 private:
  /// A connection that was accepted and has not proved itself.
  struct Incoming {
    FileDescriptor socket;
    bool local;
    Handshake handshake;
    Deadline deadline;
    std::vector<std::byte> output{};
    bool waits_for_room = false;  ///< Its socket takes no more output now.
    bool lingering = false;       ///< Refused; its input is dropped until it closes, so that it can read why.
  };
  /// A connection whose handshake is done.
  struct Member {
    InstanceId instance{};
    FileDescriptor socket;
    bool local = false;
    MessageReader reader{kMaxMemberMessageBody};
    std::vector<std::byte> output{};
    bool waits_for_room = false;
    bool told_ready = false;
    bool is_ready = false;
  };
  /// A lower rank that this one connects with.
  struct Wanted {
    Contact contact;
    std::optional<Connector> connector;
    Deadline retry_at{};
    std::chrono::milliseconds patience{5};
  };

  void begin();
  void step();
  void tick();
  [[nodiscard]] bool is_done() const;
  void handle(std::uint64_t label, std::uint32_t events);
  void watch(int fd, std::uint64_t label, std::uint32_t events, int operation);
  void open_listeners();

  // Finding rank 0.
  void look_for_rank_0();
  void adopt(Announcement announcement);
  void use_secret_of(Announcement const& announcement);
  [[nodiscard]] bool follow_newer_announcement();
  void find_failure_of_rank_0();
  void expect_same_host(int peer, Contact const& contact) const;

  // Connecting with lower ranks.
  void connect_with(int peer, Contact contact);
  void advance(int peer);
  void retry(int peer, Wanted& wanted);
  void advance_timers();

  // Accepting higher ranks.
  void accept_from(Listener const& listener);
  void make_room();
  bool read_handshake(Incoming& incoming);
  bool flush_output(Incoming& incoming);
  /// @returns whether the connection stays.
  bool advance(Incoming& incoming);
  bool conclude(Incoming& incoming);
  void count_refusal(std::string const& why);

  // Connected ranks.
  void join(int peer, InstanceId const& instance, FileDescriptor socket, bool local);
  void read_messages(int peer);
  [[nodiscard]] static bool is_done_with(Member const& member);
  void leave_rest_to_engines(Member const& member);
  void on_message(int peer, Message const& message);
  void on_contact(int peer, Message const& message);
  void on_contacts(Message const& message);
  void on_closed(int peer);
  void send(int peer, MessageKind kind, std::span<std::byte const> body);
  void flush(int peer);
  void expect_files_for_transport() const;
  void tell_ready();
  void check_deadlines();
  void record_failure(RendezvousFailure failure);
  void fail_here(std::string text) { record_failure({.origin = self_->rank, .text = std::move(text)}); }
  void tell_failure(RendezvousFailure const& failure) noexcept;
  [[nodiscard]] std::string who_is_missing() const;
  [[nodiscard]] std::vector<Lifeline> take_lifelines();

  std::shared_ptr<HandshakeSelf> self_;
  bool const was_given_secret_;
  Contact const own_;
  std::vector<Listener> listeners_;
  std::vector<SocketAddress> sources_;  ///< Addresses to connect from; empty: any.
  Noticeboard& board_;
  GroupOptions const& options_;
  Deadline const deadline_;
  FileDescriptor epoll_;
  Deadline next_tick_, next_timer_ = Deadline::max();

  std::optional<Announcement> announcement_;
  Deadline announced_at_{};  ///< When this rank first saw the announcement.
  Deadline next_look_{};     ///< For a newer announcement, or a failure.
  std::string refusal_;      ///< Why rank 0 refused this rank.

  std::map<int, Incoming> incoming_;  ///< By socket, the key in `label`.
  std::map<int, Wanted> wanted_;      ///< By rank.
  std::vector<std::optional<Member>> members_;
  std::vector<std::string> contacts_;                 ///< Of the ranks as rank 0 learns them.
  std::vector<std::optional<Deadline>> missed_from_;  ///< When a rank that closed its connection counts as gone.
  std::vector<std::string> notes_;                    ///< Why a rank is not connected yet.
  int num_members_ = 0, num_ready_ = 0, num_contacts_ = 0;
  bool has_opened_listeners_ = false, has_contacts_ = false, has_told_ready_ = false;
  std::optional<RendezvousFailure> failure_;
  std::uint64_t refusals_ = 0;
  std::string last_refusal_;
};

}  // namespace headway::comm
