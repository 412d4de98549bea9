// Bootstrap: n processes that share only a key-value store become a full mesh of authenticated sockets.
//
// This file holds two ideas.
// 1. Find each other (look_for_rank_0, adopt, follow_newer_announcement, find_failure_of_rank_0, on_contact,
// on_contacts): the store holds one announcement, of rank 0. The other ranks learn all addresses from rank 0 over an
// authenticated connection.
// 2. Build the mesh (step, handle, accept_from, advance, join, tell_ready, tell_failure): one epoll loop runs all
// handshakes in both directions, then agrees on the end: all ranks ready, or one failure.
//
// Example, 3 ranks. Rank 0 publishes its contact. Ranks 1 and 2 read it, connect, prove the secret, and send their
// contacts. Rank 0 sends both contacts to both. Rank 2 connects to rank 1. Each rank sends kReady to the other two, and
// is done once it has kReady from both.
// Example, stale store. The store still holds the announcement of a job that was killed. Nobody listens at its address,
// so rank 1 retries and reads the store again until rank 0 of the new job has overwritten it.
//
// Invariants:
// - Only the announcement is read before it is known to belong to this attempt. All other keys carry its generation.
// - A rank connects to lower ranks and accepts from higher ones, so each pair has one connection. A higher rank may
//   connect again after giving up; two processes with one rank are an error.
// - A message before authentication is at most kMaxMessageBody bytes, and at most 2n + 64 strangers wait at a time.
// - After kReady in both directions a socket belongs to the transports; nothing more is read from it here.
// - The first failure wins. It is sent over every existing connection, and its origin or rank 0 posts it in the store.
// Complexity: O(n) connections and messages per rank; rank 0 sends n contacts of about 400 bytes to each of n ranks.
// Source: bootstrap through a root rank as in NCCL; RFC 8305 for the choice of addresses (connector.hpp).

#include "rendezvous/meeting.hpp"

#include "engines/epoll.hpp"
#include "headway/comm/status.hpp"
#include "open_files.hpp"
#include "rendezvous/bytes.hpp"
#include "rendezvous/process_start.hpp"
#include "rendezvous/random.hpp"
#include "rendezvous/sockets.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace headway::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kHandshakeTime(10);  ///< Limit for the handshake of an accepted connection.
constexpr seconds kLingerTime(1);      ///< Time in which a refused process may read the reason.
constexpr seconds kReconnectTime(3);   ///< Time in which a higher rank may connect again after it closed.
constexpr std::size_t kMaxStrangers = 64;
/// Descriptors that a transport opens per peer on this host (doorbell and pidfd), and for itself.
constexpr std::size_t kFilesPerLocalPeer = 2, kFilesOfTransport = 8;
/// Interval between checks of deadlines and interrupts; also the longest wait for the store.
constexpr milliseconds kTick(100);
/// Errors of a connection that accept(2) passes on. They concern that peer only; the next connection may be fine.
constexpr std::array kErrorsBeforeAccept{EINTR,  ECONNABORTED, EPROTO,     ENETDOWN,    ENOPROTOOPT, EHOSTDOWN,
                                         ENONET, EHOSTUNREACH, EOPNOTSUPP, ENETUNREACH, ETIMEDOUT};
/// Intervals of the look for a newer announcement, and of the look for a failure that an unconnected rank has posted.
constexpr milliseconds kLookAgain(500);
constexpr seconds kFailureLook(1);
/// Time after which an announcement that contradicts this rank's options counts as one of this attempt, not as an old
/// one.
constexpr seconds kStaleTime(2);
/// Longest pause between two tries to connect to one rank.
constexpr milliseconds kLongestPatience(100);

/// Source of an epoll event: its kind, and an index, socket or rank.
enum class Kind : std::uint32_t { kListener, kIncoming, kWanted, kMember };

constexpr std::uint64_t label_of(Kind kind, int which) {
  return std::uint64_t{static_cast<std::uint32_t>(kind)} << 32 | static_cast<std::uint32_t>(which);
}

int timeout_ms(Deadline deadline) {
  auto const left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
}

std::string rank_name(int rank) { return "rank " + std::to_string(rank); }

bool would_block();

// True unless the other end is known to have closed the connection.
bool is_open(int socket) {
  std::byte next{};
  ssize_t const count = ::recv(socket, &next, 1, MSG_PEEK | MSG_DONTWAIT);
  return count > 0 || (count < 0 && (would_block() || errno == EINTR));
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK; }

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

}  // namespace

Meeting::Meeting(HandshakeSelf self, Contact own, std::vector<Listener> listeners, Noticeboard& board,
                 GroupOptions const& options, Deadline deadline)
    : self_(std::make_shared<HandshakeSelf>(std::move(self))),
      was_given_secret_(!self_->secret.empty()),
      own_(std::move(own)),
      listeners_(std::move(listeners)),
      board_(board),
      options_(options),
      deadline_(deadline),
      epoll_(make_epoll("rendezvous")),
      next_tick_(Clock::now() + kTick),
      members_(index(self_->size)),
      contacts_(index(self_->size)),
      missed_from_(index(self_->size)),
      notes_(index(self_->size)) {
  if (options.interface.empty() || options.engine == Engine::kShm) return;
  for (auto const& each : addresses_of_interface(options.interface)) sources_.push_back(each.address);
}

Meeting::~Meeting() = default;

std::vector<Lifeline> Meeting::run() {
  try {
    begin();
    while (!failure_ && !is_done()) step();
  } catch (RendezvousError const& error) {
    tell_failure(error.failure());
    throw;
  } catch (SystemError const& error) {
    tell_failure({.origin = self_->rank, .text = error.what()});
    throw;
  } catch (...) {
    tell_failure({.origin = self_->rank, .text = "its caller gave up connecting"});
    throw;
  }
  if (failure_) {
    tell_failure(*failure_);
    throw RendezvousError(*failure_);
  }
  return take_lifelines();
}

void Meeting::tell_early_failure(RendezvousFailure const& failure) noexcept {
  try {
    if (self_->rank == 0) {
      Announcement const announcement{.drawn_secret = was_given_secret_ ? "" : to_hex(random_bytes<32>()),
                                      .contact = own_};
      board_.post_announcement(announcement);
      return board_.post_failure(announcement.generation(), failure);
    }
    begin();
    auto const patience = Clock::now() + kStaleTime;
    while (!members_[0] && !failure_ && Clock::now() < std::min(patience, deadline_)) step();
    if (announcement_) board_.post_failure(generation(), failure);
    tell_failure(failure);
  } catch (std::exception const&) {
    // This rank reports the failure itself. The others run into their deadline.
  }
}

bool Meeting::is_done() const { return has_told_ready_ && num_ready_ == self_->size - 1; }

void Meeting::begin() {
  for (int peer = 0; peer < self_->rank; ++peer) {
    notes_[index(peer)] = "it did not publish where it can be reached";
  }
  if (self_->rank != 0) return;
  Announcement announcement{.drawn_secret = was_given_secret_ ? "" : to_hex(random_bytes<32>()), .contact = own_};
  use_secret_of(announcement);
  announcement_ = std::move(announcement);
  next_look_ = Clock::now() + 2 * kFailureLook;
  open_listeners();
  board_.post_announcement(*announcement_);
}

void Meeting::step() {
  if (self_->rank > 0 && !announcement_) look_for_rank_0();
  if (Clock::now() >= next_timer_) advance_timers();
  if (!has_told_ready_ && has_contacts_ && num_members_ == self_->size - 1) {
    expect_files_for_transport();
    tell_ready();
  }

  std::array<epoll_event, 64> events;
  bool const may_wait =
      self_->rank == 0 || announcement_.has_value();  // Otherwise look_for_rank_0() has waited in the store already.
  int const timeout = may_wait ? timeout_ms(std::min({next_tick_, next_timer_, deadline_})) : 0;
  int const count = ::epoll_wait(epoll_.get(), events.data(), events.size(), timeout);
  if (count < 0 && errno != EINTR) throw SystemError("epoll_wait", errno, "rendezvous");
  for (int i = 0; i < count && !failure_; ++i) handle(events[index(i)].data.u64, events[index(i)].events);
  if (!failure_ && Clock::now() >= next_tick_) tick();
}

void Meeting::handle(std::uint64_t label, std::uint32_t events) {
  auto const which = static_cast<int>(label & 0xffffffff);
  switch (static_cast<Kind>(label >> 32)) {
    case Kind::kListener:
      return accept_from(listeners_[index(which)]);
    case Kind::kIncoming:
      if (auto const found = incoming_.find(which); found != incoming_.end() && !advance(found->second)) {
        incoming_.erase(found);
      }
      return;
    case Kind::kWanted:
      return advance(which);
    case Kind::kMember:
      if ((events & EPOLLOUT) != 0) flush(which);
      if ((events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) read_messages(which);
      return;
  }
}

void Meeting::tick() {
  auto const now = Clock::now();
  next_tick_ = now + kTick;
  if (options_.while_connecting) options_.while_connecting();
  check_deadlines();
  if (failure_ || now < next_look_) return;
  if (self_->rank == 0) {
    next_look_ = now + kFailureLook;
    if (auto posted = board_.find_failure(generation(), now + milliseconds(20))) record_failure(posted->failure);
  } else if (announcement_ && !has_contacts_ && num_members_ <= 1) {
    next_look_ = now + kLookAgain;
    static_cast<void>(follow_newer_announcement());
  }
}

void Meeting::watch(int fd, std::uint64_t label, std::uint32_t events, int operation) {
  epoll_event event{.events = events, .data = {.u64 = label}};
  if (::epoll_ctl(epoll_.get(), operation, fd, &event) != 0) throw SystemError("epoll_ctl", errno, "rendezvous");
}

void Meeting::open_listeners() {
  for (std::size_t i = 0; i < listeners_.size(); ++i) {
    watch(listeners_[i].socket.get(), label_of(Kind::kListener, static_cast<int>(i)), EPOLLIN, EPOLL_CTL_ADD);
  }
}

// No rank connects here before this rank is connected to rank 0, so it may block in the store.
void Meeting::look_for_rank_0() {
  if (auto found = board_.find_announcement(std::min(deadline_, Clock::now() + kTick))) adopt(std::move(*found));
}

void Meeting::adopt(Announcement announcement) {
  wanted_.erase(0);
  if (members_[0]) {
    members_[0].reset();
    --num_members_;
  }
  use_secret_of(announcement);
  announcement_ = std::move(announcement);
  announced_at_ = Clock::now();
  next_look_ = announced_at_ + kLookAgain;
  connect_with(0, announcement_->contact);
}

// Handshakes in progress keep the secret with which they started.
void Meeting::use_secret_of(Announcement const& announcement) {
  if (was_given_secret_) return;
  auto self = std::make_shared<HandshakeSelf>(*self_);
  self->secret = announcement.drawn_secret;
  self_ = std::move(self);
}

bool Meeting::follow_newer_announcement() {
  auto found = board_.find_announcement(std::min(deadline_, Clock::now() + kTick));
  if (!found || found->generation() == generation()) return false;
  adopt(std::move(*found));
  return true;
}

// Rank 0 does not answer at its announced address. It may have given up this attempt and posted the reason, or the
// announcement may be old. A posted failure counts if it is younger than this process, and if this process did not take
// part in that attempt.
void Meeting::find_failure_of_rank_0() {
  if (Noticeboard::is_concluded(generation(), self_->rank)) return;
  auto posted = board_.find_failure(generation(), Clock::now() + milliseconds(20));
  if (posted && posted->posted_at >= process_start()) throw RendezvousError(std::move(posted->failure));
}

void Meeting::expect_same_host(int peer, Contact const& contact) const {
  if (options_.engine != Engine::kShm) return;
  if (contact.host == own_.host || contact.host.empty() || own_.host.empty()) return;
  throw SystemError("engine shm needs all ranks on one host: rank " + std::to_string(self_->rank) + " is on " +
                    own_.host + " and rank " + std::to_string(peer) + " on " + contact.host +
                    " (boot id/network namespace)");
}

void Meeting::connect_with(int peer, Contact contact) {
  auto& wanted = wanted_[peer];
  wanted.contact = std::move(contact);
  auto addresses = candidate_addresses(wanted.contact, own_.host, options_.engine);
  wanted.connector.emplace(self_, peer, wanted.contact, std::move(addresses), sources_, epoll_.get(),
                           label_of(Kind::kWanted, peer));
  advance(peer);
}

void Meeting::advance(int peer) {
  auto const found = wanted_.find(peer);
  if (found == wanted_.end() || !found->second.connector) return;
  Wanted& wanted = found->second;
  Connector& connector = *wanted.connector;
  switch (connector.advance()) {
    case Connector::Outcome::kGoing:
      next_timer_ = std::min(next_timer_, connector.next_timer());
      return;
    case Connector::Outcome::kConnected: {
      remember_good_address(wanted.contact.host, connector.address());
      auto const instance = wanted.contact.instance;
      bool const local = connector.address().is_local();
      auto socket = connector.take_socket();
      wanted_.erase(found);
      return join(peer, instance, std::move(socket), local);
    }
    case Connector::Outcome::kDisagreement:
      throw SystemError(connector.error());
    case Connector::Outcome::kRefused:
      refusal_ = connector.error();
      break;
    case Connector::Outcome::kAgain:
    case Connector::Outcome::kElsewhere:
      break;
  }
  notes_[index(peer)] = connector.error();
  wanted.connector.reset();
  wanted.retry_at = Clock::now() + wanted.patience;
  wanted.patience = std::min(2 * wanted.patience, kLongestPatience);
  next_timer_ = std::min(next_timer_, wanted.retry_at);
}

void Meeting::retry(int peer, Wanted& wanted) {
  if (peer == 0) {
    if (follow_newer_announcement()) return;
    bool const has_drawn = !announcement_->drawn_secret.empty() && !was_given_secret_;
    if (!refusal_.empty() && !has_drawn) {
      if (was_given_secret_) throw RefusedError(refusal_);
      throw SystemError("rank 0 was given a secret and rank " + std::to_string(self_->rank) + " was not");
    }
    if (Clock::now() >= announced_at_ + kStaleTime) expect_same_host(0, wanted.contact);
    find_failure_of_rank_0();
  } else if (!refusal_.empty()) {
    throw RefusedError(refusal_);
  }
  refusal_.clear();
  auto const patience = wanted.patience;
  connect_with(peer, wanted.contact);
  if (auto const found = wanted_.find(peer); found != wanted_.end()) found->second.patience = patience;
}

void Meeting::advance_timers() {
  auto const now = Clock::now();
  next_timer_ = Deadline::max();
  std::vector<int> peers;
  for (auto const& [peer, wanted] : wanted_) peers.push_back(peer);
  for (int const peer : peers) {
    auto const found = wanted_.find(peer);
    if (found == wanted_.end()) continue;
    Wanted& wanted = found->second;
    auto const due = wanted.connector ? wanted.connector->next_timer() : wanted.retry_at;
    if (due > now) {
      next_timer_ = std::min(next_timer_, due);
    } else if (wanted.connector) {
      advance(peer);
    } else {
      retry(peer, wanted);
    }
  }
}

// Checked while peers still read messages, so that they hear why this rank cannot continue.
void Meeting::expect_files_for_transport() const {
  auto const num_local = static_cast<std::size_t>(
      std::ranges::count_if(members_, [](auto const& member) { return member && member->local; }));
  expect_free_files(kFilesPerLocalPeer * num_local + kFilesOfTransport, self_->size);
}

void Meeting::tell_ready() {
  has_told_ready_ = true;
  for (int peer = 0; peer < self_->size; ++peer) {
    auto& member = members_[index(peer)];
    if (!member || std::exchange(member->told_ready, true)) continue;
    send(peer, MessageKind::kReady, {});
    if (member->is_ready) leave_rest_to_engines(*member);
  }
}

void Meeting::check_deadlines() {
  auto const now = Clock::now();
  std::erase_if(incoming_, [&](auto const& each) {
    bool const late = each.second.deadline <= now;
    if (late && !each.second.lingering) count_refusal("it did not finish the handshake in time");
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
  // A bounded number per call: a flood of strangers must not keep this rank from its deadlines.
  for (std::size_t i = 0; i < kMaxStrangers; ++i) {
    FileDescriptor socket(::accept4(listener.socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid()) {
      if (would_block()) return;
      if (std::ranges::find(kErrorsBeforeAccept, errno) != kErrorsBeforeAccept.end()) continue;
      throw SystemError("accept", errno, rank_name(self_->rank));
    }
    if (!listener.local) tune_connection(socket.get());
    make_room();
    int const fd = socket.get();
    watch(fd, label_of(Kind::kIncoming, fd), EPOLLIN, EPOLL_CTL_ADD);
    incoming_.insert_or_assign(fd, Incoming{.socket = std::move(socket),
                                            .local = listener.local,
                                            .handshake = Handshake::accept(self_),
                                            .deadline = Clock::now() + kHandshakeTime});
  }
}

// Silent strangers must not use up the descriptors: the oldest one is dropped.
void Meeting::make_room() {
  if (incoming_.size() < 2 * index(self_->size) + kMaxStrangers) return;
  count_refusal("too many connections waited");
  incoming_.erase(std::ranges::min_element(incoming_, {}, [](auto const& each) { return each.second.deadline; }));
}

bool Meeting::advance(Incoming& incoming) {
  if (incoming.lingering) {
    std::array<std::byte, 4096> dropped;
    ssize_t const count = ::recv(incoming.socket.get(), dropped.data(), dropped.size(), 0);
    return count > 0 || (count < 0 && (would_block() || errno == EINTR));
  }
  return read_handshake(incoming) && flush_output(incoming) && conclude(incoming);
}

bool Meeting::read_handshake(Incoming& incoming) {
  std::array<std::byte, 4096> buffer;
  while (std::size_t const wanted = incoming.handshake.wanted()) {
    ssize_t const count = ::recv(incoming.socket.get(), buffer.data(), std::min(wanted, buffer.size()), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && would_block()) break;
    if (count <= 0) {
      count_refusal("it closed the connection during the handshake");
      return false;
    }
    incoming.handshake.receive(std::span(buffer).first(static_cast<std::size_t>(count)));
    auto const output = incoming.handshake.take_output();
    incoming.output.insert(incoming.output.end(), output.begin(), output.end());
    if (!output.empty()) break;  // The other side sends nothing more before it has the answer.
  }
  return true;
}

bool Meeting::flush_output(Incoming& incoming) {
  while (!incoming.output.empty()) {
    ssize_t const count = ::send(incoming.socket.get(), incoming.output.data(), incoming.output.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && would_block()) break;
    if (count < 0) {
      count_refusal("it closed the connection during the handshake");
      return false;
    }
    incoming.output.erase(incoming.output.begin(), incoming.output.begin() + count);
  }
  bool const is_waiting = !incoming.output.empty();
  if (is_waiting || incoming.waits_for_room) {
    int const fd = incoming.socket.get();
    watch(fd, label_of(Kind::kIncoming, fd), is_waiting ? EPOLLIN | EPOLLOUT : EPOLLIN, EPOLL_CTL_MOD);
    incoming.waits_for_room = is_waiting;
  }
  return true;
}

bool Meeting::conclude(Incoming& incoming) {
  if (!incoming.output.empty()) return true;
  switch (incoming.handshake.outcome()) {
    case Handshake::Outcome::kGoing:
      return true;
    case Handshake::Outcome::kDone:
      join(incoming.handshake.peer(), incoming.handshake.peer_instance(), std::move(incoming.socket), incoming.local);
      return false;
    case Handshake::Outcome::kDisagreement:
      fail_here(incoming.handshake.error());
      return false;
    case Handshake::Outcome::kStranger:
    case Handshake::Outcome::kRefused:
      break;
  }
  count_refusal(incoming.handshake.error());
  ::shutdown(incoming.socket.get(), SHUT_WR);
  incoming.lingering = true;
  incoming.deadline = Clock::now() + kLingerTime;
  return true;
}

void Meeting::count_refusal(std::string const& why) {
  ++refusals_;
  last_refusal_ = why;
}

// A rank may connect again after it gave up a connection that is complete here; two processes with one rank are an
// error. The proof of an abandoned attempt may be read last; then the other connection is still open and stays.
void Meeting::join(int peer, InstanceId const& instance, FileDescriptor socket, bool local) {
  auto& member = members_[index(peer)];
  if (member && member->instance != instance) {
    fail_here("two processes say that they are " + rank_name(peer));
    return;
  }
  if (member && is_open(member->socket.get())) return;
  missed_from_[index(peer)].reset();
  if (member) {
    num_ready_ -= member->is_ready ? 1 : 0;
  } else {
    ++num_members_;
  }
  watch(socket.get(), label_of(Kind::kMember, peer), EPOLLIN, EPOLL_CTL_MOD);
  member.emplace();
  member->instance = instance;
  member->socket = std::move(socket);
  member->local = local;
  has_told_ready_ = false;
  if (self_->rank == 0 && has_contacts_) send(peer, MessageKind::kContacts, encode_contacts(contacts_));
  if (peer == 0) {
    if (!std::exchange(has_opened_listeners_, true)) open_listeners();
    auto const text = encode_contact(own_);
    send(0, MessageKind::kContact, std::as_bytes(std::span(text)));
  }
}

void Meeting::read_messages(int peer) {
  std::array<std::byte, 64 * 1024> buffer;
  for (;;) {
    auto& member = members_[index(peer)];
    if (!member || is_done_with(*member) || failure_) return;
    std::size_t const wanted = member->reader.wanted();
    if (wanted > 0) {
      ssize_t const count = ::recv(member->socket.get(), buffer.data(), std::min(wanted, buffer.size()), MSG_DONTWAIT);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && would_block()) return;
      if (count <= 0) return on_closed(peer);
      member->reader.feed(std::span(buffer).first(static_cast<std::size_t>(count)));
      if (member->reader.wanted() > 0) continue;
    }
    if (auto const message = member->reader.take()) {
      on_message(peer, *message);
      return;  // The next epoll event reports the rest.
    }
    fail_here(rank_name(peer) + " broke the protocol: " + std::string(member->reader.error()));
    return;
  }
}

// A peer that is ready but does not know yet that this rank is may still fail and say so. Once both are ready, all
// further input belongs to the transports.
bool Meeting::is_done_with(Member const& member) { return member.is_ready && member.told_ready; }

void Meeting::leave_rest_to_engines(Member const& member) { watch(member.socket.get(), 0, 0, EPOLL_CTL_DEL); }

void Meeting::on_message(int peer, Message const& message) {
  bool const is_from_0 = peer == 0;
  if (message.kind == MessageKind::kReady) {
    auto& member = *members_[index(peer)];
    member.is_ready = true;
    ++num_ready_;
    if (member.told_ready) leave_rest_to_engines(member);
  } else if (message.kind == MessageKind::kFailure) {
    ByteReader reader(message.body);
    auto const origin = static_cast<int>(reader.integer());
    auto const text = std::span(message.body).subspan(std::min<std::size_t>(4, message.body.size()));
    record_failure({.origin = origin, .text = decode_text(text)});
  } else if (message.kind == MessageKind::kContact && self_->rank == 0) {
    on_contact(peer, message);
  } else if (message.kind == MessageKind::kContacts && is_from_0 && !has_contacts_) {
    on_contacts(message);
  } else {
    fail_here(rank_name(peer) + " sent a message out of order");
  }
}

void Meeting::on_contact(int peer, Message const& message) {
  std::string& contact = contacts_[index(peer)];
  num_contacts_ += contact.empty() ? 1 : 0;
  contact.assign(reinterpret_cast<char const*>(message.body.data()), message.body.size());
  if (num_contacts_ < self_->size - 1 || std::exchange(has_contacts_, true)) return;
  auto const body = encode_contacts(contacts_);
  for (int each = 1; each < self_->size; ++each) {
    if (members_[index(each)]) send(each, MessageKind::kContacts, body);
  }
}

void Meeting::on_contacts(Message const& message) {
  has_contacts_ = true;
  auto contacts = decode_contacts(message.body, self_->size);
  for (int peer = 1; peer < self_->rank; ++peer) expect_same_host(peer, contacts[index(peer)]);
  for (int peer = self_->rank - 1; peer > 0; --peer) connect_with(peer, std::move(contacts[index(peer)]));
}

// A higher rank may abandon an attempt and connect again at once. A lower one never closes an accepted connection.
void Meeting::on_closed(int peer) {
  if (peer == 0 && !has_contacts_ && num_members_ == 1 && follow_newer_announcement()) return;
  if (peer < self_->rank) {
    fail_here(rank_name(peer) + " ended during the rendezvous");
    return;
  }
  num_ready_ -= members_[index(peer)]->is_ready ? 1 : 0;
  members_[index(peer)].reset();
  --num_members_;
  missed_from_[index(peer)] = Clock::now() + kReconnectTime;
}

void Meeting::send(int peer, MessageKind kind, std::span<std::byte const> body) {
  auto const message = encode_message(kind, body);
  auto& output = members_[index(peer)]->output;
  output.insert(output.end(), message.begin(), message.end());
  flush(peer);
}

// Send errors are ignored: a broken connection is detected when it is read.
void Meeting::flush(int peer) {
  auto& member = members_[index(peer)];
  if (!member) return;
  std::size_t num_sent = 0;
  while (num_sent < member->output.size()) {
    auto const rest = std::span(member->output).subspan(num_sent);
    ssize_t const count = ::send(member->socket.get(), rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) break;
    num_sent += static_cast<std::size_t>(count);
  }
  member->output.erase(member->output.begin(), member->output.begin() + static_cast<std::ptrdiff_t>(num_sent));
  bool const is_waiting = !member->output.empty();
  if (std::exchange(member->waits_for_room, is_waiting) == is_waiting || is_done_with(*member)) return;
  watch(member->socket.get(), label_of(Kind::kMember, peer), is_waiting ? EPOLLIN | EPOLLOUT : EPOLLIN, EPOLL_CTL_MOD);
}

void Meeting::record_failure(RendezvousFailure failure) {
  if (!failure_) failure_ = std::move(failure);
}

void Meeting::tell_failure(RendezvousFailure const& failure) noexcept {
  try {
    auto const body =
        ByteWriter().integer(static_cast<std::uint32_t>(failure.origin)).raw(encode_text(failure.text)).take();
    for (int peer = 0; peer < self_->size; ++peer) {
      if (members_[index(peer)]) send(peer, MessageKind::kFailure, body);
    }
  } catch (std::exception const&) {
    // This rank reports the failure itself. The others detect that it is gone.
  }
}

std::string Meeting::who_is_missing() const {
  std::string absent;
  std::string unready;
  for (int peer = 0; peer < self_->size; ++peer) {
    if (peer == self_->rank) continue;
    if (!members_[index(peer)]) {
      absent += (absent.empty() ? "" : ", ") + rank_name(peer);
      if (!notes_[index(peer)].empty()) absent += " (" + notes_[index(peer)] + ")";
    } else if (!members_[index(peer)]->is_ready) {
      unready += (unready.empty() ? "" : ", ") + rank_name(peer);
    }
  }
  std::string text = absent.empty() ? "not connected with all others in time: " + unready
                                    : "not connected with " + rank_name(self_->rank) + " in time: " + absent;
  if (refusals_ > 0) {
    text += "; " + std::to_string(refusals_) + " connection(s) refused, the last because " + last_refusal_;
  }
  return text;
}

std::vector<Lifeline> Meeting::take_lifelines() {
  std::vector<Lifeline> lifelines(members_.size());
  for (std::size_t peer = 0; peer < members_.size(); ++peer) {
    if (!members_[peer]) continue;
    FileDescriptor owner = std::move(members_[peer]->socket);
    int const socket = owner.get();
    bool const local = members_[peer]->local;
    lifelines[peer] = {.fd = std::move(owner),
                       .same_host = local,
                       .address = local ? "" : peer_address(socket).ip(),
                       .own_address = local ? "" : own_address(socket).ip(),
                       .peer_pid = local ? peer_process(socket) : -1};
  }
  return lifelines;
}

}  // namespace headway::comm
