// SPDX-License-Identifier: Apache-2.0

// TCP transport: puts as frames over one stream socket per peer, without a copy at the sender.
//
// Idea: the sender queues a 32-byte FrameHeader (kind, tag, window, offset, sizes), the put's header and a reference
// to its payload. submit() hands up to 64 such pieces to one sendmsg(). The receiver's poll() reads frames directly
// into the receive buffer or a window and then reports the tag.
//
// Example: a put of a 24-byte header and an 8-byte payload is 64 bytes on the wire. One readv() takes it into the
// reader's stage, a buffer of 16 KiB; poll() copies the header to `offset` and the payload to `offset` + 64. Of a 1 MiB
// payload at most 16 KiB pass through the stage; the other bytes are read straight into their destination.
//
// Invariants:
// - flushed() counts puts whose last byte the kernel has taken; only then may the caller change a payload.
// - Every frame is checked against its window before a byte of it is written.
// - Input of a peer is read to its end before its loss is reported, so what it sent before it left arrives.
// - One peer gets at most kCallsPerTurn calls and about kBytesPerTurn bytes per turn, so it cannot starve others.
// - A peer that is silent for 10 s with data under way is lost (connection_health.hpp). The timer for that runs only
//   while data is unacknowledged, so an idle endpoint wakes nobody.
// Complexity: one sendmsg() for up to 32 puts, one readv() for many small frames, at most one staged copy of 16 KiB for
// each large one. The queue holds up to SendQueue::kMaxPuts puts per peer.
// Source: sendmsg(2), epoll(7), tcp(7) (TCP_INFO).

#include "transport/tcp/endpoint.hpp"

#include "transport/tcp/connection_health.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include <array>
#include <cassert>
#include <cerrno>
#include <cstring>

namespace headway::comm {
namespace {

constexpr std::size_t kPiecesPerCall = 64;  ///< iovec entries per sendmsg(), two per put.
constexpr time_t kSilenceCheckSeconds = 5;  ///< Interval of the checks for silent peers.

// Limits per peer and turn, so that it cannot starve the others. The next poll() continues.
constexpr int kCallsPerTurn = 16;
constexpr std::size_t kBytesPerTurn = std::size_t{4} << 20;

}  // namespace

PeerTraits TcpEndpoint::traits(int peer) const {
  expects(peer >= 0 && peer < size() && link(peer).is_peer, "tcp does not reach that rank");
  return {.transport = "tcp", .can_get = false, .can_put_to_window = true};
}

TcpEndpoint::Link& TcpEndpoint::checked_link(int peer) {
  expects(peer >= 0 && peer < size() && link(peer).is_peer, "a put needs another rank that tcp reaches");
  return link(peer);
}

Status TcpEndpoint::put(Destination const& destination, std::span<std::byte const> header,
                        std::span<std::byte const> payload, Tag tag) {
  Link& to = checked_link(destination.peer);
  expects(header.size() <= kMaxHeaderBytes, "a put's header is longer than kMaxHeaderBytes");
  expects(destination.window != kReceiveBuffer || tcp::fits_window(receive_buffer_.size(), kReceiveBuffer,
                                                                   destination.offset, header.size(), payload.size()),
          "a put leaves the peer's receive buffer, or its offset there is no multiple of 64");
  if (!to.loss.empty()) {
    return {StatusCode::kPeerLost, "rank " + std::to_string(destination.peer) + " is lost: " + to.loss};
  }
  if (to.queue.is_full()) return Status::would_block();
  to.queue.push_put(destination, header, payload, tag);
  ++to.num_put;
  mark_unsubmitted(destination.peer);
  return {};
}

void TcpEndpoint::mark_unsubmitted(int peer) {
  if (std::exchange(link(peer).has_unsubmitted, true)) return;
  unsubmitted_.push_back(peer);
}

void TcpEndpoint::submit() {
  for (int const peer : unsubmitted_) {
    link(peer).has_unsubmitted = false;
    if (!link(peer).waits_for_room) flush(peer);
  }
  unsubmitted_.clear();
}

bool TcpEndpoint::flush(int peer) {
  Link& to = link(peer);
  if (!to.socket.valid()) return false;
  std::size_t num_sent = 0;
  bool is_full = false;
  for (int call = 0; call < kCallsPerTurn && num_sent < kBytesPerTurn && !to.queue.empty() && !is_full; ++call) {
    std::array<iovec, kPiecesPerCall> pieces;
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = to.queue.gather(pieces);
    ssize_t const count = ::sendmsg(to.socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count >= 0) {
      to.num_flushed += to.queue.advance(static_cast<std::size_t>(count));
      num_sent += static_cast<std::size_t>(count);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ENOMEM) {
      is_full = true;
    } else if (errno != EINTR) {
      fail_sending(to, errno);
      break;
    }
  }
  if (num_sent > 0) start_silence_timer();
  // The kernel tells when there is room again. Until then submit() does not try this peer.
  wait_for_room(peer, !to.queue.empty());
  return num_sent > 0;
}

// Data that the peer sent before it left is still read; its loss is reported afterwards.
void TcpEndpoint::fail_sending(Link& broken, int error_number) {
  broken.loss = std::strerror(error_number);
  broken.num_flushed += broken.queue.clear();
}

void TcpEndpoint::wait_for_room(int peer, bool waits) {
  Link& to = link(peer);
  if (to.waits_for_room == waits) return;
  to.waits_for_room = waits;
  epoll_event event{.events = waits ? EPOLLIN | EPOLLOUT : EPOLLIN, .data = {.fd = peer}};
  [[maybe_unused]] int const changed = ::epoll_ctl(sockets_.get(), EPOLL_CTL_MOD, to.socket.get(), &event);
  assert(changed == 0 && "the socket is in the epoll set as long as it is open");
}

bool TcpEndpoint::poll(ArrivalSink& sink) {
  std::array<epoll_event, 64> events;
  int const count = ::epoll_wait(sockets_.get(), events.data(), events.size(), 0);
  bool moved = false;
  for (int i = 0; i < count; ++i) {
    auto const& event = events[static_cast<std::size_t>(i)];
    if (event.data.fd < 0) {  // data.fd holds the peer's rank; -1: the silence timer.
      check_silence(sink);
      continue;
    }
    // Read first: a write to a peer that has closed would destroy the data that it sent before.
    if (event.events & ~EPOLLOUT) moved = read_from(event.data.fd, sink) || moved;
    if (event.events & EPOLLOUT) moved = flush(event.data.fd) || moved;
  }
  return moved;
}

bool TcpEndpoint::read_from(int peer, ArrivalSink& sink) {
  struct Handler final : tcp::FrameHandler {
    Handler(int source_rank, ArrivalSink& arrivals) : source(source_rank), sink(arrivals) {}
    void received(Tag tag) override { sink.arrived(source, tag); }
    void on_oob(std::string_view text) override { sink.on_oob(source, text); }
    int source;
    ArrivalSink& sink;
  } handler(peer, sink);

  Link& from = link(peer);
  bool moved = false;
  std::size_t num_read = 0;
  for (int call = 0; call < kCallsPerTurn && num_read < kBytesPerTurn && from.socket.valid(); ++call) {
    tcp::FrameReader::Pieces pieces;
    std::size_t const num_pieces = from.reader.gather(pieces);
    ssize_t const count = ::readv(from.socket.get(), pieces.data(), static_cast<int>(num_pieces));
    if (count > 0) {
      moved = true;
      num_read += static_cast<std::size_t>(count);
      if (!from.reader.advance(static_cast<std::size_t>(count), handler)) {
        ++num_bad_frames_;
        lose(peer, "it sent " + std::string(from.reader.error()), sink);
        break;
      }
      std::size_t room = 0;
      for (std::size_t i = 0; i < num_pieces; ++i) room += pieces[i].iov_len;
      if (static_cast<std::size_t>(count) < room && from.loss.empty()) break;  // The socket is most likely empty.
    } else if (count == 0) {
      std::string const reason = from.reader.is_inside_frame() ? "it closed the connection in the middle of a message"
                                                               : "it closed the connection";
      lose(peer, from.loss.empty() ? reason : from.loss, sink);
      return true;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!from.loss.empty()) lose(peer, from.loss, sink);
      break;
    } else if (errno != EINTR) {
      lose(peer, std::strerror(errno), sink);
      return true;
    }
  }
  return moved;
}

void TcpEndpoint::lose(int peer, std::string reason, ArrivalSink& sink) {
  Link& lost = link(peer);
  ::epoll_ctl(sockets_.get(), EPOLL_CTL_DEL, lost.socket.get(), nullptr);
  lost.socket.reset();
  lost.waits_for_room = false;
  lost.num_flushed += lost.queue.clear();
  lost.loss = std::move(reason);
  sink.lost(peer, lost.loss);
}

Status TcpEndpoint::get(int peer, std::uint64_t /*address*/, std::span<std::byte> /*local*/) {
  throw UsageError("tcp cannot read the memory of rank " + std::to_string(peer));
}

bool TcpEndpoint::claim(int /*owner*/, std::uint64_t /*offset*/, std::uint64_t /*value*/) {
  throw UsageError("tcp has no words that two ranks can claim");
}

bool TcpEndpoint::open_window(int peer, WindowId window, std::span<std::byte> memory) {
  expects(window != kReceiveBuffer, "window 0 is the receive buffer");
  checked_link(peer).reader.open_window(window, memory);
  return true;
}

void TcpEndpoint::close_window(int peer, WindowId window) { checked_link(peer).reader.close_window(window); }

void TcpEndpoint::send_oob(int peer, std::string_view text) noexcept {
  if (peer < 0 || peer >= size() || !link(peer).socket.valid() || !link(peer).loss.empty()) return;
  try {
    link(peer).queue.push_oob(text);
    // Best effort: if the socket is full, the text waits its turn behind earlier frames.
    if (!link(peer).waits_for_room) flush(peer);
  } catch (std::exception const&) {
    // Best effort: there is no memory for the OOB message.
  }
}

void TcpEndpoint::retract() noexcept {
  for (int peer = 0; peer < size(); ++peer) {
    Link& to = link(peer);
    try {
      // A frame of which the peer has a part must be finished, or the stream could not go on: its rest is copied.
      to.num_flushed += to.queue.let_go_of_payloads();
    } catch (std::bad_alloc const&) {
      fail_sending(to, ENOMEM);
    }
  }
}

void TcpEndpoint::sleep(Deadline deadline) {
  std::array<epoll_event, 2> events;
  int const count = ::epoll_wait(activity_.get(), events.data(), events.size(), milliseconds_until(deadline));
  for (int i = 0; i < count; ++i) {
    if (events[static_cast<std::size_t>(i)].data.fd == bell_.fd()) bell_.drain();
  }
  bell_.drain();
}

void TcpEndpoint::start_silence_timer() {
  if (std::exchange(timer_runs_, true)) return;
  itimerspec const once{.it_interval = {}, .it_value = {.tv_sec = kSilenceCheckSeconds, .tv_nsec = 0}};
  ::timerfd_settime(silence_timer_.get(), 0, &once, nullptr);
}

// The timer runs only while data is unacknowledged, so an idle endpoint wakes nobody.
void TcpEndpoint::check_silence(ArrivalSink& sink) {
  std::uint64_t expirations = 0;
  [[maybe_unused]] ssize_t const drained = ::read(silence_timer_.get(), &expirations, sizeof(expirations));
  timer_runs_ = false;
  bool is_busy = false;
  for (int peer = 0; peer < size(); ++peer) {
    Link const& each = link(peer);
    if (!each.socket.valid() || (each.queue.empty() && tcp::all_acknowledged(each.socket.get()))) continue;
    is_busy = true;
    if (tcp::peer_is_silent(each.socket.get())) lose(peer, "its host has not answered for 10 s", sink);
  }
  if (is_busy) start_silence_timer();
}

}  // namespace headway::comm
