// SPDX-License-Identifier: Apache-2.0

// Connections that are being made: to lower ranks (Wanted), with retries, and from higher ranks (Incoming), until the
// handshake is done. A stranger is a connection that has not authenticated itself.
// bootstrap.cpp explains the whole algorithm.

#include "bootstrap/bootstrap.hpp"
#include "headway/base/log.hpp"
#include "headway/comm/status.hpp"
#include "system/sockets.hpp"

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
/// Incoming connections that this rank keeps besides two for each rank; also the most that it accepts in one call.
constexpr std::size_t kMaxStrangers = 64;
/// Errors of a connection that accept(2) passes on. They concern that peer only; the next connection may be fine.
constexpr std::array kErrorsBeforeAccept{EINTR,  ECONNABORTED, EPROTO,     ENETDOWN,    ENOPROTOOPT, EHOSTDOWN,
                                         ENONET, EHOSTUNREACH, EOPNOTSUPP, ENETUNREACH, ETIMEDOUT};
/// Longest pause between two tries to connect to one rank.
constexpr milliseconds kLongestPatience(100);

}  // namespace

void Bootstrap::connect_with(int peer, RankAddress rank_address) {
  auto& wanted = wanted_[peer];
  wanted.rank_address = std::move(rank_address);
  auto addresses = candidate_addresses(wanted.rank_address, own_.host, options_.transport);
  wanted.connector.emplace(self_, peer, wanted.rank_address, std::move(addresses), sources_, epoll_.get(),
                           label_of(EventKind::kWanted, peer));
  advance(peer);
}

void Bootstrap::advance(int peer) {
  auto const found = wanted_.find(peer);
  if (found == wanted_.end() || !found->second.connector) return;
  Wanted& wanted = found->second;
  Connector& connector = *wanted.connector;
  switch (connector.advance()) {
    case Connector::Outcome::kGoing:
      next_timer_ = std::min(next_timer_, connector.next_timer());
      return;
    case Connector::Outcome::kConnected: {
      remember_good_address(wanted.rank_address.host, connector.address());
      auto const instance = wanted.rank_address.instance;
      bool const local = connector.address().is_local();
      auto socket = connector.take_socket();
      wanted_.erase(found);
      return join(peer, instance, std::move(socket), local);
    }
    // A field of the agreement differs. Retrying cannot help, so the group fails with both values.
    case Connector::Outcome::kDisagreement:
      throw SystemError(connector.error());
    case Connector::Outcome::kRefused:
      refusal_ = connector.error();
      break;
    case Connector::Outcome::kAgain:
    case Connector::Outcome::kElsewhere:
      break;
  }
  absence_reasons_[index(peer)] = connector.error();  // For the error that names the missing ranks.
  wanted.connector.reset();
  wanted.retry_at = Clock::now() + wanted.patience;
  wanted.patience = std::min(2 * wanted.patience, kLongestPatience);
  next_timer_ = std::min(next_timer_, wanted.retry_at);
}

// Rank 0 is special: its address comes from the store, where an earlier run may have left one. So before each new try
// the store is asked for a newer announcement. A refusal is final if the secret was configured. Otherwise rank 0 draws
// a random one for each announcement.
void Bootstrap::retry(int peer, Wanted& wanted) {
  if (peer == 0) {
    if (follow_newer_announcement()) return;
    // A drawn secret changes with each announcement, so a refusal may only mean that the announcement was old.
    bool const has_drawn = !announcement_->drawn_secret.empty() && !was_given_secret_;
    if (!refusal_.empty() && !has_drawn) {
      if (was_given_secret_) throw RefusedError(refusal_);
      throw SystemError("rank 0 was given a secret and rank " + std::to_string(self_->rank) + " was not");
    }
    // An old announcement may come from another host.
    if (Clock::now() >= announced_at_ + kStaleTime) expect_same_host(0, wanted.rank_address);
    find_failure_of_rank_0();
  } else if (!refusal_.empty()) {
    throw RefusedError(refusal_);
  }
  refusal_.clear();
  // connect_with() starts anew; the pause between tries goes on from where it was.
  auto const patience = wanted.patience;
  connect_with(peer, wanted.rank_address);
  if (auto const found = wanted_.find(peer); found != wanted_.end()) found->second.patience = patience;
}

void Bootstrap::advance_timers() {
  auto const now = Clock::now();
  next_timer_ = Deadline::max();
  // Advancing a connector may change wanted_, so the loop below must not iterate over it.
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

void Bootstrap::accept_from(Listener const& listener) {
  // A bounded number per call: a flood of strangers must not keep this rank from its deadlines.
  for (std::size_t i = 0; i < kMaxStrangers; ++i) {
    base::FileDescriptor socket(::accept4(listener.socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid()) {
      if (would_block()) return;
      if (std::ranges::find(kErrorsBeforeAccept, errno) != kErrorsBeforeAccept.end()) continue;
      throw SystemError("accept", errno, rank_name(self_->rank));
    }
    if (!listener.local) tune_connection(socket.get());
    make_room();
    int const fd = socket.get();
    watch(fd, label_of(EventKind::kIncoming, fd), EPOLLIN, EPOLL_CTL_ADD);
    incoming_.insert_or_assign(fd, Incoming{.socket = std::move(socket),
                                            .local = listener.local,
                                            .handshake = Handshake::accept(self_),
                                            .deadline = Clock::now() + kHandshakeTime});
  }
}

// Silent strangers must not use up the descriptors: the oldest one is dropped.
void Bootstrap::make_room() {
  if (incoming_.size() < 2 * index(self_->size) + kMaxStrangers) return;
  count_refusal("too many connections waited");
  incoming_.erase(std::ranges::min_element(incoming_, {}, [](auto const& each) { return each.second.deadline; }));
}

bool Bootstrap::advance(Incoming& incoming) {
  if (incoming.lingering) {
    std::array<std::byte, 4096> dropped;
    ssize_t const count = ::recv(incoming.socket.get(), dropped.data(), dropped.size(), 0);
    return count > 0 || (count < 0 && (would_block() || errno == EINTR));
  }
  return read_handshake(incoming) && flush_output(incoming) && conclude(incoming);
}

// Reads no more than the handshake wants: bytes behind it belong to the transport that takes over the socket.
bool Bootstrap::read_handshake(Incoming& incoming) {
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

bool Bootstrap::flush_output(Incoming& incoming) {
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
    watch(fd, label_of(EventKind::kIncoming, fd), is_waiting ? EPOLLIN | EPOLLOUT : EPOLLIN, EPOLL_CTL_MOD);
    incoming.waits_for_room = is_waiting;
  }
  return true;
}

// @returns whether the connection is still needed here.
bool Bootstrap::conclude(Incoming& incoming) {
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
  // Closing at once would reset the connection, and the other side might never read the reason.
  ::shutdown(incoming.socket.get(), SHUT_WR);
  incoming.lingering = true;
  incoming.deadline = Clock::now() + kLingerTime;
  return true;
}

void Bootstrap::count_refusal(std::string const& why) {
  ++refusals_;
  last_refusal_ = why;
  base::log(base::LogLevel::kInfo, "bootstrap", self_->rank, "refused a connection: " + why);
}
}  // namespace headway::comm
