#include "rendezvous/meeting.hpp"

#include "headway/comm/status.hpp"
#include "open_files.hpp"
#include "rendezvous/bytes.hpp"
#include "rendezvous/sockets.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace headway::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kHandshakeTime(10);
constexpr seconds kLingerTime(1);
constexpr seconds kReconnectTime(3);
constexpr std::size_t kMaxStrangers = 64;
/// Descriptors that a transport opens for each peer on this host (a doorbell and a process), and for itself.
constexpr std::size_t kFilesPerLocalPeer = 2, kFilesOfTransport = 8;

FileDescriptor make_event() {
  FileDescriptor event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event.valid()) throw SystemError("eventfd", errno, "rendezvous");
  return event;
}

void raise_event(FileDescriptor const& event) noexcept { static_cast<void>(::eventfd_write(event.get(), 1)); }

// For messages that fit any socket's buffer. A broken connection shows when it is read.
void send_message(int socket, MessageKind kind, std::span<std::byte const> body) {
  auto const message = encode_message(kind, body);
  static_cast<void>(::send(socket, message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
}

int timeout_ms(Deadline deadline) {
  auto const left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
}

std::string rank_name(int rank) { return "rank " + std::to_string(rank); }

}  // namespace

Meeting::Meeting(HandshakeSelf self, std::vector<Listener> listeners, Deadline deadline)
    : self_(std::move(self)),
      listeners_(std::move(listeners)),
      deadline_(deadline),
      wake_(make_event()),
      ended_(make_event()),
      members_(static_cast<std::size_t>(self_.size)),
      missed_from_(static_cast<std::size_t>(self_.size)),
      notes_(static_cast<std::size_t>(self_.size)),
      thread_([this] { run(); }) {}

Meeting::~Meeting() {
  {
    std::lock_guard const lock(mutex_);
    stop_ = true;
  }
  raise_event(wake_);
}

void Meeting::add(Connection connection) {
  {
    std::lock_guard const lock(mutex_);
    added_.push_back(std::move(connection));
  }
  raise_event(wake_);
}

void Meeting::note(int peer, std::string why) {
  std::lock_guard const lock(mutex_);
  notes_[static_cast<std::size_t>(peer)] = std::move(why);
}

void Meeting::fail(RendezvousFailure failure) {
  record_failure(std::move(failure));
  raise_event(wake_);
}

bool Meeting::wait_until(Deadline until) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, until, [&] { return is_ended_; });
}

std::optional<RendezvousFailure> Meeting::failure() {
  std::lock_guard const lock(mutex_);
  return failure_;
}

std::uint64_t Meeting::refusals() {
  std::lock_guard const lock(mutex_);
  return refusals_;
}

std::vector<Lifeline> Meeting::take_lifelines() {
  std::vector<Lifeline> lifelines(members_.size());
  for (auto& member : members_) {
    if (!member) continue;
    set_blocking(member->connection.socket.get());
    bool const local = member->connection.local;
    auto const peer = static_cast<std::size_t>(member->connection.peer);
    int const socket = member->connection.socket.release();
    lifelines[peer] = {.fd = socket,
                       .same_host = local,
                       .address = local ? "" : peer_address(socket).ip(),
                       .peer_pid = local ? peer_process(socket) : -1};
  }
  return lifelines;
}

void Meeting::run() noexcept {
  auto const stopped = [&] {
    std::lock_guard const lock(mutex_);
    return stop_ || failure_.has_value();
  };
  try {
    while (!stopped() && !everyone_ready()) step();
  } catch (std::exception const& error) {
    fail_here(error.what());
  }
  if (failure()) tell_failure();
  listeners_.clear();
  pending_.clear();
  {
    std::lock_guard const lock(mutex_);
    is_ended_ = true;
  }
  raise_event(ended_);
  changed_.notify_all();
}

void Meeting::step() {
  adopt_added();
  if (all_connected()) {
    if (!std::exchange(has_checked_files_, true)) expect_files_for_transport();
    tell_ready();
  }

  std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0}};
  for (auto const& listener : listeners_) polled.push_back({listener.socket.get(), POLLIN, 0});
  for (auto const& pending : pending_) {
    short const events = pending.output.empty() ? POLLIN : POLLIN | POLLOUT;
    polled.push_back({pending.socket.get(), events, 0});
  }
  std::vector<Member*> watched;
  for (auto& member : members_) {
    if (!member || member->is_ready) continue;
    watched.push_back(&*member);
    polled.push_back({member->connection.socket.get(), POLLIN, 0});
  }

  if (::poll(polled.data(), polled.size(), timeout_ms(next_deadline())) < 0 && errno != EINTR) {
    throw SystemError("poll", errno, "rendezvous");
  }

  auto next = polled.begin();
  if (next++->revents != 0) {
    eventfd_t count = 0;
    static_cast<void>(::eventfd_read(wake_.get(), &count));
  }
  std::vector<Listener const*> ready_listeners;
  for (auto const& listener : listeners_) {
    if (next++->revents != 0) ready_listeners.push_back(&listener);
  }
  std::vector<short> pending_events;
  for (std::size_t i = 0; i < pending_.size(); ++i) pending_events.push_back(next++->revents);
  for (auto* member : watched) {
    if (next++->revents != 0) read_verdict(*member);
  }
  // Last, as it changes the members: a handshake that is done becomes one.
  std::size_t index = 0;
  std::erase_if(pending_, [&](Pending& pending) { return !advance(pending, pending_events[index++]); });
  for (auto const* listener : ready_listeners) accept_from(*listener);
  check_deadlines();
}

void Meeting::adopt_added() {
  std::vector<Connection> added;
  {
    std::lock_guard const lock(mutex_);
    added.swap(added_);
  }
  for (auto& connection : added) join(std::move(connection));
}

// Checked while peers still listen: they hear why this rank cannot go on.
void Meeting::expect_files_for_transport() const {
  auto const num_local = static_cast<std::size_t>(
      std::ranges::count_if(members_, [](auto const& member) { return member && member->connection.local; }));
  expect_free_files(kFilesPerLocalPeer * num_local + kFilesOfTransport, self_.size);
}

void Meeting::tell_ready() {
  for (auto& member : members_) {
    if (!member || std::exchange(member->told_ready, true)) continue;
    send_message(member->connection.socket.get(), MessageKind::kReady, {});
  }
}

bool Meeting::all_connected() const {
  return std::ranges::count_if(members_, [](auto const& member) { return member.has_value(); }) == self_.size - 1;
}

bool Meeting::everyone_ready() const {
  return all_connected() && std::ranges::all_of(members_, [](auto const& member) {
           return !member || (member->is_ready && member->told_ready);
         });
}

Deadline Meeting::next_deadline() const {
  Deadline earliest = deadline_;
  for (auto const& pending : pending_) earliest = std::min(earliest, pending.deadline);
  for (auto const& gone : missed_from_) earliest = std::min(earliest, gone.value_or(earliest));
  return earliest;
}

void Meeting::check_deadlines() {
  auto const now = Clock::now();
  std::erase_if(pending_, [&](Pending const& pending) {
    bool const late = pending.deadline <= now;
    if (late && !pending.lingering) count_refusal("it did not finish the handshake in time");
    return late;
  });
  for (std::size_t peer = 0; peer < missed_from_.size(); ++peer) {
    if (missed_from_[peer] && *missed_from_[peer] <= now) {
      fail_here(rank_name(static_cast<int>(peer)) + " ended during the rendezvous");
    }
  }
  if (deadline_ <= now) fail_here(who_is_missing());
}

void Meeting::accept_from(Listener const& listener) {
  for (;;) {
    FileDescriptor socket(::accept4(listener.socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid()) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        throw SystemError("accept", errno, rank_name(self_.rank));
      }
      continue;  // The connection failed before it was accepted (accept(2)): not this rank's trouble.
    }
    if (!listener.local) tune_connection(socket.get());
    make_room();
    pending_.push_back({.socket = std::move(socket),
                        .local = listener.local,
                        .handshake = Handshake::accept(self_),
                        .deadline = Clock::now() + kHandshakeTime,
                        .output = {}});
  }
}

// Strangers that connect and say nothing may not use up the descriptors: the oldest goes.
void Meeting::make_room() {
  if (pending_.size() < static_cast<std::size_t>(self_.size) + kMaxStrangers) return;
  count_refusal("too many connections waited");
  pending_.erase(pending_.begin());
}

bool Meeting::advance(Pending& pending, short events) {
  if (events == 0) return true;
  if (pending.lingering) {
    std::array<std::byte, 4096> dropped;
    ssize_t const count = ::recv(pending.socket.get(), dropped.data(), dropped.size(), 0);
    return count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR));
  }
  return read_handshake(pending) && flush_output(pending) && conclude(pending);
}

bool Meeting::read_handshake(Pending& pending) {
  std::array<std::byte, 4096> buffer;
  while (std::size_t const wanted = pending.handshake.wanted()) {
    ssize_t const count = ::recv(pending.socket.get(), buffer.data(), std::min(wanted, buffer.size()), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (count <= 0) {
      count_refusal("it closed the connection during the handshake");
      return false;
    }
    pending.handshake.receive(std::span(buffer).first(static_cast<std::size_t>(count)));
    auto const output = pending.handshake.take_output();
    pending.output.insert(pending.output.end(), output.begin(), output.end());
  }
  return true;
}

bool Meeting::flush_output(Pending& pending) {
  while (!pending.output.empty()) {
    ssize_t const count = ::send(pending.socket.get(), pending.output.data(), pending.output.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (count < 0) {
      count_refusal("it closed the connection during the handshake");
      return false;
    }
    pending.output.erase(pending.output.begin(), pending.output.begin() + count);
  }
  return true;
}

bool Meeting::conclude(Pending& pending) {
  if (!pending.output.empty()) return true;
  switch (pending.handshake.outcome()) {
    case Handshake::Outcome::kGoing:
      return true;
    case Handshake::Outcome::kDone:
      join({.peer = pending.handshake.peer(),
            .instance = pending.handshake.peer_instance(),
            .socket = std::move(pending.socket),
            .local = pending.local});
      return false;
    case Handshake::Outcome::kDisagreement:
      fail_here(pending.handshake.error());
      return false;
    case Handshake::Outcome::kStranger:
    case Handshake::Outcome::kRefused:
      break;
  }
  count_refusal(pending.handshake.error());
  ::shutdown(pending.socket.get(), SHUT_WR);
  pending.lingering = true;
  pending.deadline = Clock::now() + kLingerTime;
  return true;
}

void Meeting::count_refusal(std::string const& why) {
  std::lock_guard const lock(mutex_);
  ++refusals_;
  last_refusal_ = why;
}

// A rank may connect again if it gave up an attempt that was done here already; two processes with one rank may not.
void Meeting::join(Connection connection) {
  auto const peer = static_cast<std::size_t>(connection.peer);
  auto& member = members_[peer];
  if (member && member->connection.instance != connection.instance) {
    fail_here("two processes say that they are " + rank_name(connection.peer));
    return;
  }
  missed_from_[peer].reset();
  member.emplace();
  member->connection = std::move(connection);
}

void Meeting::read_verdict(Member& member) {
  std::array<std::byte, 4096> buffer;
  int const peer = member.connection.peer;
  while (std::size_t const wanted = member.reader.wanted()) {
    ssize_t const count =
        ::recv(member.connection.socket.get(), buffer.data(), std::min(wanted, buffer.size()), MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (count <= 0) return on_closed(peer);
    member.reader.feed(std::span(buffer).first(static_cast<std::size_t>(count)));
  }
  auto const message = member.reader.take();
  if (message) {
    on_verdict(member, *message);
  } else {
    fail_here(rank_name(peer) + " broke the protocol: " + std::string(member.reader.error()));
  }
}

void Meeting::on_verdict(Member& member, Message const& message) {
  if (message.kind == MessageKind::kReady) {
    member.is_ready = true;
  } else if (message.kind == MessageKind::kFailure) {
    ByteReader reader(message.body);
    auto const origin = static_cast<int>(reader.integer());
    auto const text = std::span(message.body).subspan(std::min<std::size_t>(4, message.body.size()));
    record_failure({.origin = origin, .text = decode_text(text)});
  } else {
    fail_here(rank_name(member.connection.peer) + " sent a message out of order");
  }
}

// A higher rank may have given up an attempt and connect again at once; a lower one never closes what it accepted.
void Meeting::on_closed(int peer) {
  if (peer < self_.rank) {
    fail_here(rank_name(peer) + " ended during the rendezvous");
    return;
  }
  members_[static_cast<std::size_t>(peer)].reset();
  missed_from_[static_cast<std::size_t>(peer)] = Clock::now() + kReconnectTime;
}

void Meeting::record_failure(RendezvousFailure failure) {
  std::lock_guard const lock(mutex_);
  if (!failure_) failure_ = std::move(failure);
}

void Meeting::tell_failure() noexcept {
  std::lock_guard const lock(mutex_);
  auto const body =
      ByteWriter().integer(static_cast<std::uint32_t>(failure_->origin)).raw(encode_text(failure_->text)).take();
  for (auto const& connection : added_) send_message(connection.socket.get(), MessageKind::kFailure, body);
  for (auto const& member : members_) {
    if (member) send_message(member->connection.socket.get(), MessageKind::kFailure, body);
  }
}

std::string Meeting::who_is_missing() {
  std::string absent;
  std::string unready;
  std::lock_guard const lock(mutex_);
  for (int peer = 0; peer < self_.size; ++peer) {
    auto const index = static_cast<std::size_t>(peer);
    if (peer == self_.rank) continue;
    if (!members_[index]) {
      absent += (absent.empty() ? "" : ", ") + rank_name(peer);
      if (!notes_[index].empty()) absent += " (" + notes_[index] + ")";
    } else if (!members_[index]->is_ready) {
      unready += (unready.empty() ? "" : ", ") + rank_name(peer);
    }
  }
  std::string text = absent.empty() ? "not connected with all others in time: " + unready
                                    : "not connected with " + rank_name(self_.rank) + " in time: " + absent;
  if (refusals_ > 0) {
    text += "; " + std::to_string(refusals_) + " connection(s) refused, the last because " + last_refusal_;
  }
  return text;
}

}  // namespace headway::comm
