// SPDX-License-Identifier: Apache-2.0

// Connects to one peer over the first of its addresses that answers; connector.hpp has the rules.
//
// Example: the peer has addresses A (a network that drops packets) and B. At 0 ms a connect to A starts; at 250 ms,
// without an answer, one to B starts beside it. The peer's hello, its first handshake message, arrives over B, so this
// rank sends its proof of the secret over B and drops A.
//
// Invariant: only one attempt at a time sends its proof (proving_), since a peer that gets two would take the rank
// for two processes. If that attempt fails, another one may prove.

#include "bootstrap/connector.hpp"

#include "headway/comm/status.hpp"
#include "system/sockets.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

namespace headway::comm {
namespace {

using Outcome = Connector::Outcome;

/// Time without an answer after which the next address is tried in parallel (RFC 8305, section 5).
constexpr std::chrono::milliseconds kStagger(250);
/// Same, for a peer that accepted the connection but has sent nothing: most likely it is busy.
constexpr std::chrono::seconds kStaggerOnceConnected(2);
/// Time limit of one attempt. A busy host with many ranks needs seconds to answer all of them.
constexpr std::chrono::seconds kAttemptTime(10);

// A name or port where nobody listens will not come back (kElsewhere): its owner listened before it published the
// address. A full connection queue is temporary (kAgain).
Outcome outcome_of(int connect_error) {
  bool const nobody = connect_error == ECONNREFUSED || connect_error == ENOENT || connect_error == EACCES ||
                      connect_error == EPERM || connect_error == ENETUNREACH || connect_error == EHOSTUNREACH ||
                      connect_error == EADDRNOTAVAIL || connect_error == EAFNOSUPPORT || connect_error == ETIMEDOUT ||
                      connect_error == EINVAL;
  return nobody ? Outcome::kElsewhere : Outcome::kAgain;
}

/// True for addresses that answer at once or never, so a parallel try of the next address gains nothing.
bool is_on_this_host(SocketAddress const& address) { return address.is_local() || address.is_loopback(); }

/// Address by which each host was reached last. A host keeps its few addresses while a process lives, and an address
/// that does not answer costs each group of the process kStagger.
class GoodAddresses {
 public:
  static GoodAddresses& of_process() {
    static GoodAddresses instance;
    return instance;
  }
  void remember(std::string const& host, std::string ip) {
    std::lock_guard const lock(mutex_);
    ip_of_host_.insert_or_assign(host, std::move(ip));
  }
  [[nodiscard]] std::string find(std::string const& host) {
    std::lock_guard const lock(mutex_);
    auto const found = ip_of_host_.find(host);
    return found == ip_of_host_.end() ? "" : found->second;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> ip_of_host_;
};

}  // namespace

Connector::Connector(Handshake::Self self, int peer, RankAddress const& rank_address,
                     std::vector<SocketAddress> addresses, std::vector<SocketAddress> sources, int epoll,
                     std::uint64_t label)
    : self_(std::move(self)),
      peer_(peer),
      instance_(rank_address.instance),
      addresses_(std::move(addresses)),
      sources_(std::move(sources)),
      epoll_(epoll),
      label_(label) {}

Connector::~Connector() = default;

Deadline Connector::next_timer() const {
  Deadline next = next_start_.value_or(Deadline::max());
  for (auto const& attempt : attempts_) next = std::min(next, attempt.deadline);
  return next;
}

std::string Connector::error() const { return error_.empty() ? "it can be reached under no address" : error_; }

// An attempt that ends may free the way for others: the next address may start, or another attempt may prove. Then
// all are looked at once more.
Connector::Outcome Connector::advance() {
  for (bool is_proof_free = false;; is_proof_free = false) {
    if (may_start_next()) start_next();
    for (std::size_t i = 0; i < attempts_.size();) {
      std::string error;
      Outcome const outcome = move_on(attempts_[i], error);
      if (outcome == Outcome::kGoing) {
        ++i;
        continue;
      }
      if (outcome == Outcome::kConnected) {
        socket_ = std::move(attempts_[i].socket);
        connected_to_ = attempts_[i].address;
        attempts_.clear();
        return outcome;
      }
      if (outcome == Outcome::kRefused || outcome == Outcome::kDisagreement) {
        error_ = error;
        attempts_.clear();
        return outcome;
      }
      may_work_later_ = may_work_later_ || outcome == Outcome::kAgain;
      is_proof_free = is_proof_free || proving_ == attempts_[i].socket.get();
      forget(i, error);
    }
    if (!may_start_next() && !is_proof_free) break;
  }
  if (!attempts_.empty()) return Outcome::kGoing;
  return may_work_later_ ? Outcome::kAgain : Outcome::kElsewhere;
}

// - A local socket that is only busy is waited for: no other address of this host would be better.
// - An address of this host answers at once or not at all, so the next one starts only when it has failed.
// - Any other address gets a head start (next_start_).
bool Connector::may_start_next() const {
  if (num_started_ == addresses_.size()) return false;
  if (num_started_ == 0) return true;
  auto const& last = addresses_[num_started_ - 1];
  if (last.is_local() && may_work_later_) return false;
  if (is_on_this_host(last) && !attempts_.empty()) return false;
  return attempts_.empty() || (next_start_ && *next_start_ <= Clock::now());
}

void Connector::start_next() {
  SocketAddress const address = addresses_[num_started_++];
  auto const now = Clock::now();
  next_start_.reset();
  if (num_started_ < addresses_.size() && !is_on_this_host(address)) next_start_ = now + kStagger;
  Attempt attempt{.address = address,
                  .socket = {},
                  .handshake = Handshake::connect(self_, peer_, instance_),
                  .deadline = now + kAttemptTime};
  int const error = start_connect(address, source_for(address), attempt.socket);
  if (!attempt.socket.valid()) throw SystemError("socket", error, "connecting with rank " + std::to_string(peer_));
  if (error != 0 && error != EINPROGRESS) {
    may_work_later_ = may_work_later_ || outcome_of(error) == Outcome::kAgain;
    error_ += (error_.empty() ? "" : ", ") + address.to_string() + ": " + std::strerror(error);
    return;
  }
  if (error == 0) on_connected(attempt);
  attempt.wants_to_write = !attempt.is_connected;
  epoll_event event{.events = EPOLLIN | (attempt.wants_to_write ? EPOLLOUT : 0U), .data = {.u64 = label_}};
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, attempt.socket.get(), &event) != 0) {
    throw SystemError("epoll_ctl", errno, "connecting");
  }
  attempts_.push_back(std::move(attempt));
}

SocketAddress Connector::source_for(SocketAddress const& address) const {
  for (auto const& source : sources_) {
    if (source.family() == address.family() && source.is_loopback() == address.is_loopback()) return source;
  }
  return {};
}

void Connector::forget(std::size_t index, std::string const& error) {
  auto const& attempt = attempts_[index];
  error_ += (error_.empty() ? "" : ", ") + attempt.address.to_string() + ": " + error;
  if (proving_ == attempt.socket.get()) proving_.reset();
  attempts_.erase(attempts_.begin() + static_cast<std::ptrdiff_t>(index));
}

Connector::Outcome Connector::move_on(Attempt& attempt, std::string& error) {
  if (!attempt.is_connected) {
    Outcome const outcome = finish_connect(attempt, error);
    if (!attempt.is_connected) return outcome;
  }
  return shake_hands(attempt, error);
}

// A second connect() tells how the first one went: EISCONN if it succeeded, EALREADY if it goes on, else its error.
Connector::Outcome Connector::finish_connect(Attempt& attempt, std::string& error) {
  if (::connect(attempt.socket.get(), attempt.address.raw(), attempt.address.length()) == 0 || errno == EISCONN) {
    on_connected(attempt);
    watch(attempt, false);
    return Outcome::kGoing;
  }
  bool const is_going = errno == EALREADY || errno == EINPROGRESS || errno == EINTR;
  if (is_going && Clock::now() < attempt.deadline) return Outcome::kGoing;
  error = is_going ? "no answer" : std::strerror(errno);
  return is_going ? Outcome::kElsewhere : outcome_of(errno);
}

void Connector::on_connected(Attempt& attempt) {
  attempt.is_connected = true;
  if (next_start_) next_start_ = Clock::now() + kStaggerOnceConnected;
}

// Alternates between sending what the handshake has to say and receiving what it wants, until one of them would block
// or the handshake has ended. The proof is held back while another attempt may prove.
Connector::Outcome Connector::shake_hands(Attempt& attempt, std::string& error) {
  std::array<std::byte, 4096> buffer;
  for (;;) {
    auto const output = attempt.handshake.take_output();
    attempt.output.insert(attempt.output.end(), output.begin(), output.end());
    bool const must_prove = attempt.handshake.is_greeted() && !attempt.output.empty();
    if (must_prove && !proving_) {
      proving_ = attempt.socket.get();
      attempt.deadline = Clock::now() + kAttemptTime;
    }
    bool const may_write = !must_prove || proving_ == attempt.socket.get();
    if (may_write && !flush(attempt)) {
      error = "it closed the connection";
      return Outcome::kAgain;
    }
    std::size_t const wanted = attempt.handshake.wanted();
    if (wanted == 0) break;
    if (may_write && !output.empty()) return Outcome::kGoing;  // The answer cannot have arrived yet.
    ssize_t const count = ::recv(attempt.socket.get(), buffer.data(), std::min(wanted, buffer.size()), 0);
    if (count > 0) {
      attempt.handshake.receive(std::span(buffer).first(static_cast<std::size_t>(count)));
    } else if (count < 0 && would_block()) {
      if (Clock::now() < attempt.deadline) return Outcome::kGoing;
      error = "it did not answer in time";
      return Outcome::kAgain;
    } else if (count == 0 || errno != EINTR) {
      error = "it closed the connection";
      return Outcome::kAgain;
    }
  }
  error = attempt.handshake.error();
  switch (attempt.handshake.outcome()) {
    case Handshake::Outcome::kDone:
      return Outcome::kConnected;
    case Handshake::Outcome::kDisagreement:
      return Outcome::kDisagreement;
    case Handshake::Outcome::kRefused:
      return Outcome::kRefused;
    case Handshake::Outcome::kStranger:
    case Handshake::Outcome::kGoing:
      break;
  }
  return Outcome::kElsewhere;
}

bool Connector::flush(Attempt& attempt) {
  std::size_t num_sent = 0;
  while (num_sent < attempt.output.size()) {
    ssize_t const count =
        ::send(attempt.socket.get(), attempt.output.data() + num_sent, attempt.output.size() - num_sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && would_block()) break;
    if (count < 0) return false;
    num_sent += static_cast<std::size_t>(count);
  }
  attempt.output.erase(attempt.output.begin(), attempt.output.begin() + static_cast<std::ptrdiff_t>(num_sent));
  watch(attempt, !attempt.output.empty());
  return true;
}

void Connector::watch(Attempt& attempt, bool wants_to_write) {
  if (std::exchange(attempt.wants_to_write, wants_to_write) == wants_to_write) return;
  epoll_event event{.events = EPOLLIN | (wants_to_write ? EPOLLOUT : 0U), .data = {.u64 = label_}};
  if (::epoll_ctl(epoll_, EPOLL_CTL_MOD, attempt.socket.get(), &event) != 0) {
    throw SystemError("epoll_ctl", errno, "connecting");
  }
}

std::vector<SocketAddress> candidate_addresses(RankAddress const& peer, std::string const& own_host,
                                               Transport transport) {
  bool const may_be_here = peer.host == own_host || peer.host.empty() || own_host.empty();
  std::vector<SocketAddress> candidates;
  if (transport != Transport::kTcp && may_be_here && !peer.local_name.empty()) {
    candidates.push_back(SocketAddress::local(peer.local_name));
  }
  for (auto const& address : peer.addresses) {
    if (!address.is_loopback() || may_be_here) candidates.push_back(address);
  }
  // std::ranges::stable_partition of GCC 12 does not compile with clang 14.
  if (may_be_here) {
    // Within one host the loopback interface is the shortest path.
    std::stable_partition(candidates.begin(), candidates.end(),
                          [](auto const& each) { return each.is_local() || each.is_loopback(); });
  } else if (auto const good = GoodAddresses::of_process().find(peer.host); !good.empty()) {
    std::stable_partition(candidates.begin(), candidates.end(), [&](auto const& each) { return each.ip() == good; });
  }
  return candidates;
}

void remember_good_address(std::string const& host, SocketAddress const& address) {
  if (host.empty() || address.is_local()) return;
  GoodAddresses::of_process().remember(host, address.ip());
}

}  // namespace headway::comm
