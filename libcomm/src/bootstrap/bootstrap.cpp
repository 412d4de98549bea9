// SPDX-License-Identifier: Apache-2.0

// Bootstrap: n processes that share only a key-value store become a full mesh of authenticated sockets.
//
// 1. Find each other (discovery.cpp): the store holds one announcement, of rank 0. The other ranks learn all addresses
// from rank 0 over an authenticated connection.
// 2. Build the mesh (connections.cpp): this file's epoll loop runs all handshakes in both directions.
// 3. Agree on the end (members.cpp): all ranks are ready, or the first failure is told to all.
//
// Example, 3 ranks. Rank 0 publishes its address. Ranks 1 and 2 read it, connect, prove the secret, and send their
// addresses. Rank 0 sends both addresses to both. Rank 2 connects to rank 1. Each rank sends kReady to the other two,
// and is done once it has kReady from both. Example, stale store. The store still holds the announcement of a job that
// was killed. Nobody listens at its address, so rank 1 retries and reads the store again until rank 0 of the new job
// has overwritten it.
//
// Invariants:
// - Only the announcement is read before it is known to belong to this attempt. All other keys carry its generation,
//   the random text that names the attempt.
// - A rank connects to lower ranks and accepts from higher ones, so each pair has one connection. A higher rank may
//   connect again after giving up; two processes with one rank are an error.
// - A message before authentication is at most kMaxMessageBody bytes. At most 2n + 64 connections that are not
//   authenticated wait at a time.
// - After kReady in both directions a socket belongs to the transports; nothing more is read from it here.
// - The first failure wins. It is sent over every existing connection, and its origin or rank 0 posts it in the store.
// Complexity: O(n) connections and messages per rank; rank 0 sends n addresses of about 400 bytes to each of n ranks.
// Source: bootstrap through a root rank as in NCCL; RFC 8305 for the choice of addresses (connector.hpp).

#include "bootstrap/bootstrap.hpp"

#include "headway/base/log.hpp"
#include "headway/base/open_files.hpp"
#include "headway/comm/status.hpp"
#include "system/epoll.hpp"
#include "system/random.hpp"
#include "system/sockets.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <utility>

namespace headway::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Descriptors that a transport opens per peer on this host (doorbell and pidfd), and for itself.
constexpr std::size_t kFilesPerLocalPeer = 2, kFilesOfTransport = 8;
/// A start is slow after a quarter of its time limit, at most kSlowStart, and then logs a warning. More follow at
/// kWarningInterval.
constexpr seconds kSlowStart(10), kWarningInterval(30);
/// Interval of the look for a failure that an unconnected rank has posted.
constexpr seconds kFailureLook(1);

int timeout_ms(Deadline deadline) {
  auto const left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
}

}  // namespace

Bootstrap::Bootstrap(HandshakeSelf self, RankAddress own, std::vector<Listener> listeners, StoreKeys& keys,
                     GroupOptions const& options, Deadline deadline)
    : self_(std::make_shared<HandshakeSelf>(std::move(self))),
      was_given_secret_(!self_->secret.empty()),
      own_(std::move(own)),
      listeners_(std::move(listeners)),
      keys_(keys),
      options_(options),
      started_at_(Clock::now()),
      deadline_(deadline),
      next_slow_note_(started_at_ + std::min<Clock::duration>(kSlowStart, (deadline - started_at_) / 4)),
      epoll_(make_epoll("bootstrap")),
      next_tick_(Clock::now() + kTick),
      members_(index(self_->size)),
      rank_addresses_(index(self_->size)),
      missed_from_(index(self_->size)),
      absence_reasons_(index(self_->size)) {
  if (options.interface.empty() || options.transport == Transport::kShm) return;
  // Connections leave from the named interface, not only arrive there, so that a multi-homed host uses one network.
  for (auto const& each : addresses_of_interface(options.interface)) sources_.push_back(each.address);
}

Bootstrap::~Bootstrap() = default;

std::vector<ControlSocket> Bootstrap::run() {
  try {
    begin();
    while (!failure_ && !is_done()) step();
  } catch (BootstrapError const& error) {
    send_failure(error.failure());
    throw;
  } catch (SystemError const& error) {
    send_failure({.origin = self_->rank, .text = error.what()});
    throw;
  } catch (...) {
    // while_connecting() threw: the user pressed Ctrl-C, for instance. The others need not wait for this rank.
    send_failure({.origin = self_->rank, .text = "its caller gave up connecting"});
    throw;
  }
  if (failure_) {
    send_failure(*failure_);
    throw BootstrapError(*failure_);
  }
  return take_control_sockets();
}

void Bootstrap::send_early_failure(BootstrapFailure const& failure) noexcept {
  try {
    if (self_->rank == 0) {
      Announcement const announcement{.drawn_secret = was_given_secret_ ? "" : to_hex(random_bytes<32>()),
                                      .rank_address = own_};
      keys_.post_announcement(announcement);
      return keys_.post_failure(announcement.generation(), failure);
    }
    begin();
    auto const patience = Clock::now() + kStaleTime;
    while (!members_[0] && !failure_ && Clock::now() < std::min(patience, deadline_)) step();
    if (announcement_) keys_.post_failure(generation(), failure);
    send_failure(failure);
  } catch (std::exception const&) {
    // This rank reports the failure itself. The others run into their deadline.
  }
}

bool Bootstrap::is_done() const { return has_sent_ready_ && num_ready_ == self_->size - 1; }

void Bootstrap::begin() {
  for (int peer = 0; peer < self_->rank; ++peer) {
    absence_reasons_[index(peer)] = "it did not publish where it can be reached";
  }
  if (self_->rank != 0) return;
  // Without a secret from the user, rank 0 draws one and publishes it: who can read the store may join.
  Announcement announcement{.drawn_secret = was_given_secret_ ? "" : to_hex(random_bytes<32>()), .rank_address = own_};
  use_secret_of(announcement);
  announcement_ = std::move(announcement);
  next_look_ = Clock::now() + 2 * kFailureLook;
  open_listeners();
  // Last: a rank that reads it may connect at once.
  keys_.post_announcement(*announcement_);
}

void Bootstrap::step() {
  if (self_->rank > 0 && !announcement_) look_for_rank_0();
  if (Clock::now() >= next_timer_) advance_timers();
  if (!has_sent_ready_ && has_rank_addresses_ && num_members_ == self_->size - 1) {
    expect_files_for_transport();
    send_ready();
  }

  std::array<epoll_event, 64> events;
  bool const may_wait =
      self_->rank == 0 || announcement_.has_value();  // Otherwise look_for_rank_0() has waited in the store already.
  int const timeout = may_wait ? timeout_ms(std::min({next_tick_, next_timer_, deadline_})) : 0;
  int const count = ::epoll_wait(epoll_.get(), events.data(), events.size(), timeout);
  if (count < 0 && errno != EINTR) throw SystemError("epoll_wait", errno, "bootstrap");
  for (int i = 0; i < count && !failure_; ++i) handle(events[index(i)].data.u64, events[index(i)].events);
  if (!failure_ && Clock::now() >= next_tick_) tick();
}

void Bootstrap::handle(std::uint64_t label, std::uint32_t events) {
  // A label is the kind of event in its upper half and a rank or an index in its lower one.
  auto const which = static_cast<int>(label & 0xffffffff);
  switch (static_cast<EventKind>(label >> 32)) {
    case EventKind::kListener:
      return accept_from(listeners_[index(which)]);
    // An event of a connection that was closed earlier in this batch finds no entry.
    case EventKind::kIncoming:
      if (auto const found = incoming_.find(which); found != incoming_.end() && !advance(found->second)) {
        incoming_.erase(found);
      }
      return;
    case EventKind::kWanted:
      return advance(which);
    case EventKind::kMember:
      if ((events & EPOLLOUT) != 0) flush(which);
      if ((events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) read_messages(which);
      return;
  }
}

void Bootstrap::tick() {
  auto const now = Clock::now();
  next_tick_ = now + kTick;
  if (options_.while_connecting) options_.while_connecting();
  check_deadlines();
  if (!failure_ && now >= next_slow_note_) log_slow_start();
  if (failure_ || now < next_look_) return;
  if (self_->rank == 0) {
    next_look_ = now + kFailureLook;
    if (auto posted = keys_.find_failure(generation(), now + milliseconds(20))) record_failure(posted->failure);
  } else if (announcement_ && !has_rank_addresses_ && num_members_ <= 1) {
    next_look_ = now + kLookAgain;
    static_cast<void>(follow_newer_announcement());
  }
}

void Bootstrap::watch(int fd, std::uint64_t label, std::uint32_t events, int operation) {
  epoll_event event{.events = events, .data = {.u64 = label}};
  if (::epoll_ctl(epoll_.get(), operation, fd, &event) != 0) throw SystemError("epoll_ctl", errno, "bootstrap");
}

void Bootstrap::open_listeners() {
  for (std::size_t i = 0; i < listeners_.size(); ++i) {
    watch(listeners_[i].socket.get(), label_of(EventKind::kListener, static_cast<int>(i)), EPOLLIN, EPOLL_CTL_ADD);
  }
}

// Checked while peers still read messages, so that they hear why this rank cannot continue.
void Bootstrap::expect_files_for_transport() const {
  auto const num_local = static_cast<std::size_t>(
      std::ranges::count_if(members_, [](auto const& member) { return member && member->local; }));
  base::expect_free_files(kFilesPerLocalPeer * num_local + kFilesOfTransport, self_->size);
}

void Bootstrap::check_deadlines() {
  auto const now = Clock::now();
  std::erase_if(incoming_, [&](auto const& each) {
    // A refused process gets a moment to read the reason; its end is not counted as a second refusal.
    bool const late = each.second.deadline <= now;
    if (late && !each.second.lingering) count_refusal("it did not finish the handshake in time");
    return late;
  });
  for (std::size_t peer = 0; peer < missed_from_.size(); ++peer) {
    if (missed_from_[peer] && *missed_from_[peer] <= now) {
      fail_here(rank_name(static_cast<int>(peer)) + " ended during the bootstrap");
    }
  }
  if (deadline_ <= now) fail_here(who_is_missing("in time"));
}

void Bootstrap::record_failure(BootstrapFailure failure) {
  if (!failure_) failure_ = std::move(failure);
}

void Bootstrap::log_slow_start() {
  auto const now = Clock::now();
  next_slow_note_ = now + kWarningInterval;
  auto const taken = std::chrono::duration_cast<std::chrono::duration<double>>(now - started_at_).count();
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "connecting takes %.1f s so far: ", taken);
  base::log(base::LogLevel::kWarning, "bootstrap", self_->rank, text.data() + who_is_missing("yet"));
}

std::string Bootstrap::who_is_missing(std::string_view when) const {
  std::string absent;
  std::string unready;
  for (int peer = 0; peer < self_->size; ++peer) {
    if (peer == self_->rank) continue;
    if (!members_[index(peer)]) {
      absent += (absent.empty() ? "" : ", ") + rank_name(peer);
      if (!absence_reasons_[index(peer)].empty()) absent += " (" + absence_reasons_[index(peer)] + ")";
    } else if (!members_[index(peer)]->is_ready) {
      unready += (unready.empty() ? "" : ", ") + rank_name(peer);
    }
  }
  std::string text = "not connected with " + (absent.empty() ? "all others" : rank_name(self_->rank)) + " " +
                     std::string(when) + ": " + (absent.empty() ? unready : absent);
  if (refusals_ > 0) {
    text += "; " + std::to_string(refusals_) + " connection(s) refused, the last because " + last_refusal_;
  }
  return text;
}

std::vector<ControlSocket> Bootstrap::take_control_sockets() {
  std::vector<ControlSocket> control_sockets(members_.size());
  for (std::size_t peer = 0; peer < members_.size(); ++peer) {
    if (!members_[peer]) continue;
    base::FileDescriptor owner = std::move(members_[peer]->socket);
    int const socket = owner.get();
    bool const local = members_[peer]->local;
    control_sockets[peer] = {.fd = std::move(owner),
                             .same_host = local,
                             .address = local ? "" : peer_address(socket).ip(),
                             .own_address = local ? "" : own_address(socket).ip(),
                             .peer_pid = local ? peer_process(socket) : -1};
  }
  return control_sockets;
}
}  // namespace headway::comm
