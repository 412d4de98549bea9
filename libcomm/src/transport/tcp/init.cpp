// SPDX-License-Identifier: Apache-2.0

// Construction and destruction of the TCP endpoint.

#include "transport/tcp/connection_health.hpp"
#include "transport/tcp/endpoint.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <thread>
#include <utility>

namespace headway::comm {
namespace {

base::FileDescriptor checked(int fd, char const* call) {
  if (fd < 0) throw SystemError(call, errno, "tcp endpoint");
  return base::FileDescriptor(fd);
}

void watch(base::FileDescriptor const& epoll, int fd, std::uint32_t events, int label) {
  epoll_event event{.events = events, .data = {.fd = label}};
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) throw SystemError("epoll_ctl", errno, "tcp endpoint");
}

// Discards input, at most 4 MiB of it, so that a peer that keeps sending delays neither the others nor the deadline.
// @returns whether the connection is still open.
bool drop_input(int socket) {
  std::array<std::byte, 16 * 1024> dropped;
  for (int num_reads = 0; num_reads < 256; ++num_reads) {
    ssize_t const count = ::recv(socket, dropped.data(), dropped.size(), MSG_DONTWAIT);
    if (count == 0) return false;
    if (count < 0 && errno != EINTR) return errno == EAGAIN || errno == EWOULDBLOCK;
  }
  return true;
}

}  // namespace

TcpEndpoint::TcpEndpoint(int rank, int size, std::vector<ControlSocket> control_sockets,
                         std::span<std::byte> receive_buffer)
    : rank_(rank), receive_buffer_(receive_buffer) {
  for (int peer = 0; peer < size; ++peer) links_.push_back(std::make_unique<Link>(receive_buffer));
  take_over(std::move(control_sockets));
  watch_sockets();
}

TcpEndpoint::TcpEndpoint(int rank, int size, std::vector<ControlSocket> control_sockets,
                         std::unique_ptr<AnonymousMapping> memory)
    : TcpEndpoint(rank, size, std::move(control_sockets), memory->bytes()) {
  own_memory_ = std::move(memory);
}

void TcpEndpoint::take_over(std::vector<ControlSocket> control_sockets) {
  for (std::size_t peer = 0; peer < control_sockets.size() && peer < links_.size(); ++peer) {
    links_[peer]->socket = std::move(control_sockets[peer].fd);
    links_[peer]->is_peer = links_[peer]->socket.valid();
  }
  expects(control_sockets.size() == links_.size(), "an endpoint needs one control socket for each rank");
  expects(!link(rank_).is_peer, "a rank has no control socket to itself");
}

void TcpEndpoint::watch_sockets() {
  sockets_ = checked(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
  activity_ = checked(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
  silence_timer_ = checked(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK), "timerfd_create");
  for (int peer = 0; peer < size(); ++peer) {
    if (!link(peer).is_peer) continue;
    int const socket = link(peer).socket.get();
    int const flags = ::fcntl(socket, F_GETFL);
    if (flags < 0 || ::fcntl(socket, F_SETFL, flags | O_NONBLOCK) < 0) {
      throw SystemError("fcntl", errno, "rank " + std::to_string(peer));
    }
    watch(sockets_, socket, EPOLLIN, peer);
  }
  watch(sockets_, silence_timer_.get(), EPOLLIN, -1);
  // sockets_, which is control_fd(), covers the sockets and the silence timer. An epoll descriptor can itself be
  // watched, so activity_ covers all that and the doorbell.
  watch(activity_, sockets_.get(), EPOLLIN, sockets_.get());
  watch(activity_, bell_.fd(), EPOLLIN, bell_.fd());
}

TcpEndpoint::~TcpEndpoint() { linger(); }

// Closing a socket with unread input resets the connection, and the peer loses the data that it has not received yet.
// So input is discarded until the peer's kernel has everything or the peer has closed too. After one second the kernel
// continues alone.
void TcpEndpoint::linger() noexcept {
  Deadline const deadline = Clock::now() + std::chrono::seconds(1);
  for (auto const& each : links_) {  // The peer may linger too, until its data is acknowledged.
    if (each->socket.valid()) tcp::acknowledge_now(each->socket.get());
  }
  auto const is_pending = [](std::unique_ptr<Link> const& each) {
    return each->socket.valid() && !tcp::all_acknowledged(each->socket.get()) && drop_input(each->socket.get());
  };
  // Counts instead of stopping at the first pending link: the input of every link must be discarded.
  for (std::chrono::microseconds pause(50); std::ranges::count_if(links_, is_pending) > 0 && Clock::now() < deadline;
       pause = std::min<std::chrono::microseconds>(2 * pause, std::chrono::milliseconds(10))) {
    std::this_thread::sleep_for(pause);
  }
}

std::unique_ptr<Endpoint> make_tcp_endpoint(int rank, int size, std::vector<ControlSocket> control_sockets,
                                            std::size_t receive_buffer_bytes) {
  return std::make_unique<TcpEndpoint>(rank, size, std::move(control_sockets),
                                       std::make_unique<AnonymousMapping>(receive_buffer_bytes));
}

}  // namespace headway::comm
