// SPDX-License-Identifier: Apache-2.0

// Connected ranks: their messages, and the agreement that all are ready or that one has failed.
// bootstrap.cpp explains the whole algorithm.
//
// Example: rank 1 of 3 is connected with 0 and 2, and sends kReady to both. It has kReady from 2 but not from 0. Rank
// 0 now runs out of descriptors and sends kFailure instead: rank 1 fails with that reason. If kReady had come from
// both, the bootstrap of rank 1 would be over, and a later failure of rank 0 would be a lost peer to the transports.
//
// Invariant: after kReady in both directions no byte is read here. It belongs to the transport that takes the socket.

#include "bootstrap/bootstrap.hpp"
#include "bootstrap/bytes.hpp"
#include "headway/base/log.hpp"
#include "system/sockets.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace headway::comm {
namespace {

using std::chrono::seconds;

constexpr seconds kReconnectTime(3);  ///< Time in which a higher rank may connect again after it closed.

// True unless the other end is known to have closed the connection.
bool is_open(int socket) {
  std::byte next{};
  ssize_t const count = ::recv(socket, &next, 1, MSG_PEEK | MSG_DONTWAIT);
  return count > 0 || (count < 0 && (would_block() || errno == EINTR));
}

}  // namespace

void Bootstrap::send_ready() {
  has_sent_ready_ = true;
  for (int peer = 0; peer < self_->size; ++peer) {
    auto& member = members_[index(peer)];
    if (!member || std::exchange(member->sent_ready, true)) continue;
    send(peer, BootstrapMessageKind::kReady, {});
    if (member->is_ready) leave_rest_to_transports(*member);
  }
}

// A rank may connect again after it gave up a connection that is complete here; two processes with one rank are an
// error. The proof of an abandoned attempt may be read last; then the other connection is still open and stays.
void Bootstrap::join(int peer, InstanceId const& instance, base::FileDescriptor socket, bool local) {
  auto& member = members_[index(peer)];
  if (member && member->instance != instance) {
    fail_here("two processes say that they are " + rank_name(peer));
    return;
  }
  if (member && is_open(member->socket.get())) return;
  missed_from_[index(peer)].reset();
  if (member) {
    // The old connection is dead, so its kReady no longer counts.
    num_ready_ -= member->is_ready ? 1 : 0;
  } else {
    ++num_members_;
  }
  watch(socket.get(), label_of(EventKind::kMember, peer), EPOLLIN, EPOLL_CTL_MOD);
  member.emplace();
  member->instance = instance;
  member->socket = std::move(socket);
  member->local = local;
  if (base::is_logged(base::LogLevel::kDebug)) {
    auto const where = local ? std::string("this host") : peer_address(member->socket.get()).to_string();
    base::log(base::LogLevel::kDebug, "bootstrap", self_->rank, "connected with " + rank_name(peer) + " on " + where);
  }
  // This rank is complete again only when the new connection has been told so too.
  has_sent_ready_ = false;
  if (self_->rank == 0 && has_rank_addresses_)
    send(peer, BootstrapMessageKind::kRankAddresses, encode_rank_addresses(rank_addresses_));
  if (peer == 0) {
    if (!std::exchange(has_opened_listeners_, true)) open_listeners();
    auto const text = encode_rank_address(own_);
    send(0, BootstrapMessageKind::kRankAddress, std::as_bytes(std::span(text)));
  }
}

void Bootstrap::read_messages(int peer) {
  std::array<std::byte, 64 * 1024> buffer;
  for (;;) {
    auto& member = members_[index(peer)];
    if (!member || is_done_with(*member) || failure_) return;
    std::size_t const wanted = member->reader.wanted();
    // Reads what the reader wants and no more: the next byte may be a transport's.
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
bool Bootstrap::is_done_with(Member const& member) { return member.is_ready && member.sent_ready; }

void Bootstrap::leave_rest_to_transports(Member const& member) { watch(member.socket.get(), 0, 0, EPOLL_CTL_DEL); }

void Bootstrap::on_message(int peer, Message const& message) {
  bool const is_from_0 = peer == 0;
  if (message.kind == BootstrapMessageKind::kReady) {
    auto& member = *members_[index(peer)];
    member.is_ready = true;
    ++num_ready_;
    if (member.sent_ready) leave_rest_to_transports(member);
  } else if (message.kind == BootstrapMessageKind::kFailure) {
    ByteReader reader(message.body);
    auto const origin = static_cast<int>(reader.integer());
    auto const text = std::span(message.body).subspan(std::min<std::size_t>(4, message.body.size()));
    record_failure({.origin = origin, .text = decode_text(text)});
  } else if (message.kind == BootstrapMessageKind::kRankAddress && self_->rank == 0) {
    on_rank_address(peer, message);
  } else if (message.kind == BootstrapMessageKind::kRankAddresses && is_from_0 && !has_rank_addresses_) {
    on_rank_addresses(message);
  } else {
    fail_here(rank_name(peer) + " sent a message out of order");
  }
}

// A higher rank may abandon an attempt and connect again at once. A lower one never closes an accepted connection.
void Bootstrap::on_closed(int peer) {
  // The closed connection may have led to rank 0 of an earlier attempt.
  if (peer == 0 && !has_rank_addresses_ && num_members_ == 1 && follow_newer_announcement()) return;
  if (peer < self_->rank) {
    fail_here(rank_name(peer) + " ended during the bootstrap");
    return;
  }
  num_ready_ -= members_[index(peer)]->is_ready ? 1 : 0;
  members_[index(peer)].reset();
  --num_members_;
  missed_from_[index(peer)] = Clock::now() + kReconnectTime;
}

void Bootstrap::send(int peer, BootstrapMessageKind kind, std::span<std::byte const> body) {
  auto const message = encode_message(kind, body);
  auto& output = members_[index(peer)]->output;
  output.insert(output.end(), message.begin(), message.end());
  flush(peer);
}

// Send errors are ignored: a broken connection is detected when it is read.
void Bootstrap::flush(int peer) {
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
  watch(member->socket.get(), label_of(EventKind::kMember, peer), is_waiting ? EPOLLIN | EPOLLOUT : EPOLLIN,
        EPOLL_CTL_MOD);
}

void Bootstrap::send_failure(BootstrapFailure const& failure) noexcept {
  try {
    auto const body =
        ByteWriter().integer(static_cast<std::uint32_t>(failure.origin)).raw(encode_text(failure.text)).take();
    for (int peer = 0; peer < self_->size; ++peer) {
      if (members_[index(peer)]) send(peer, BootstrapMessageKind::kFailure, body);
    }
  } catch (std::exception const&) {
    // This rank reports the failure itself. The others detect that it is gone.
  }
}
}  // namespace headway::comm
