#pragma once

#include "file_descriptor.hpp"
#include "headway/comm/endpoint.hpp"
#include "rendezvous/failure.hpp"
#include "rendezvous/handshake.hpp"
#include "rendezvous/lifeline.hpp"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace headway::comm {

/// A connection whose handshake is done.
struct Connection {
  int peer = -1;
  InstanceId instance{};
  FileDescriptor socket;
  bool local = false;  ///< An AF_UNIX socket.
};

/// Gathers the connections of one rank until it has all, and until every other rank has all of its own.
///
/// A thread accepts, so that a rank that waits for one peer still answers the others. Connections that fail the
/// handshake are told why, counted, and forgotten. The first failure ends the meeting here and, through the
/// connections that exist by then, at all ranks.
class Meeting {
 public:
  struct Listener {
    FileDescriptor socket;
    bool local = false;
  };

  Meeting(HandshakeSelf self, std::vector<Listener> listeners, Deadline deadline);
  ~Meeting();
  Meeting(Meeting const&) = delete;
  Meeting& operator=(Meeting const&) = delete;

  /// Thread-safe, as all below.
  void add(Connection connection);
  /// Why `peer` is not connected yet; part of the error if the deadline passes.
  void note(int peer, std::string why);
  void fail(RendezvousFailure failure);

  /// @returns whether the meeting ended before `until`.
  [[nodiscard]] bool wait_until(Deadline until);
  /// Readable once the meeting ended.
  [[nodiscard]] int ended_fd() const { return ended_.get(); }
  /// Meaningful once the meeting ended: why it failed, if it did.
  [[nodiscard]] std::optional<RendezvousFailure> failure();
  /// The connections by rank, blocking; after a meeting that did not fail.
  [[nodiscard]] std::vector<Lifeline> take_lifelines();
  /// Connections that were turned away.
  [[nodiscard]] std::uint64_t refusals();

 private:
  struct Pending {
    FileDescriptor socket;
    bool local;
    Handshake handshake;
    Deadline deadline;
    std::vector<std::byte> output;
    bool lingering = false;  ///< Refused; its input is dropped until it closes, so that it can read why.
  };
  struct Member {
    Connection connection;
    MessageReader reader;
    bool told_ready = false;
    bool is_ready = false;
  };

  void run() noexcept;
  void step();
  void adopt_added();
  void expect_files_for_transport() const;
  void tell_ready();
  void check_deadlines();
  [[nodiscard]] Deadline next_deadline() const;
  [[nodiscard]] bool all_connected() const;
  [[nodiscard]] bool everyone_ready() const;
  void accept_from(Listener const& listener);
  void make_room();
  /// @returns whether the pending connection stays.
  bool advance(Pending& pending, short events);
  bool read_handshake(Pending& pending);
  bool flush_output(Pending& pending);
  bool conclude(Pending& pending);
  void count_refusal(std::string const& why);
  void join(Connection connection);
  void read_verdict(Member& member);
  void on_verdict(Member& member, Message const& message);
  void on_closed(int peer);
  void record_failure(RendezvousFailure failure);
  void fail_here(std::string text) { record_failure({.origin = self_.rank, .text = std::move(text)}); }
  void tell_failure() noexcept;
  [[nodiscard]] std::string who_is_missing();

  HandshakeSelf const self_;
  std::vector<Listener> listeners_;
  Deadline const deadline_;
  FileDescriptor wake_;
  FileDescriptor ended_;

  // Used by the thread only, and by others after it ended.
  std::vector<Pending> pending_;
  std::vector<std::optional<Member>> members_;
  bool has_checked_files_ = false;
  std::vector<std::optional<Deadline>> missed_from_;  ///< When a rank that closed its connection counts as gone.

  std::mutex mutex_;  // Guards all below.
  std::condition_variable changed_;
  std::vector<Connection> added_;
  std::vector<std::string> notes_;
  std::optional<RendezvousFailure> failure_;
  std::uint64_t refusals_ = 0;
  std::string last_refusal_;
  bool stop_ = false;
  bool is_ended_ = false;

  std::jthread thread_;  // Last: starts when all else is there, and ends first.
};

}  // namespace headway::comm
