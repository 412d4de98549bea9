// SPDX-License-Identifier: Apache-2.0

// Set-up of the shared-memory transport: each pair of ranks exchanges memory files and doorbells over a local socket.
//
// A descriptor cannot be sent as a number: it travels as ancillary data of sendmsg() (SCM_RIGHTS), and the kernel
// makes a new one in the receiver. Each hello also carries a random number and its address. A peer that can read that
// number with process_vm_readv() knows that it may read the sender's memory, and that the process id is right.

#include "transport/shm/init.hpp"

#include "headway/base/open_files.hpp"
#include "system/available_cores.hpp"
#include "system/descriptor_message.hpp"
#include "system/epoll.hpp"
#include "transport/doorbell.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace headway::comm::shm {

namespace {

/// Pause before another try to send a hello, or to receive the rest of one.
constexpr std::chrono::milliseconds kRetryPause(1);
/// Longest poll() in LinkExchange::run() between two calls of SetupPatience::while_waiting().
constexpr std::chrono::milliseconds kSlice(100);

/// First message to each peer. The descriptors of the memory file and of the doorbell travel with it.
struct Hello {
  std::uint64_t probe_address;  ///< The peer tries to read `probe_value` at this address.
  std::uint64_t probe_value;
  cpu_set_t cores;
};

std::string with_rank(std::size_t peer) { return "rank " + std::to_string(peer); }

/// Receives the next bytes of a hello, and the descriptors that came with them. Called once poll() has reported the
/// socket: the rest of the hello follows soon, so it retries every kRetryPause until `deadline`.
ssize_t receive_some(int socket, DescriptorMessage& message, std::size_t peer, Deadline deadline) {
  for (;;) {
    ssize_t const count = recvmsg(socket, &message.header(), MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (count > 0) return count;
    if (count == 0 || errno == ECONNRESET) throw PeerGoneError(static_cast<int>(peer));
    bool const is_late = Clock::now() >= deadline;
    if (errno == EAGAIN && is_late) throw SystemError(with_rank(peer) + " sent half a hello");
    if (errno != EAGAIN && errno != EINTR) throw SystemError("recvmsg", errno, with_rank(peer));
    if (errno == EAGAIN) std::this_thread::sleep_for(kRetryPause);
  }
}

bool can_read(int pid, Hello const& hello) {
  if (pid <= 0) return false;
  std::uint64_t value = 0;
  iovec const local{.iov_base = &value, .iov_len = sizeof value};
  iovec const remote{.iov_base = reinterpret_cast<void*>(hello.probe_address), .iov_len = sizeof value};
  ssize_t const count = process_vm_readv(pid, &local, 1, &remote, 1, 0);
  return count == static_cast<ssize_t>(sizeof value) && value == hello.probe_value;
}

/// Opens a pidfd, which becomes readable when process `pid` ends. Invalid if that fails, for example because the kernel
/// has no pidfd or the process has ended.
/// @throws SystemError if no more files can be opened
base::FileDescriptor open_process(int pid, std::size_t peer) {
  if (pid <= 0) return {};
  base::FileDescriptor process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!process.valid() && base::is_out_of_files(errno)) throw SystemError("pidfd_open", errno, with_rank(peer));
  return process;
}

/// Sends one hello to each peer and receives one from each, in any order.
class LinkExchange {
 public:
  LinkExchange(std::span<PeerLink> links, LinkSettings const& settings, SetupPatience const& patience)
      : settings_(settings), patience_(patience), links_(links), awaits_(links.size()) {
    for (std::size_t peer = 0; peer < links.size(); ++peer) awaits_[peer] = links[peer].socket.valid();
  }

  /// Sends to the peers after `rank` first, so that not all ranks start with the same one.
  void run(std::size_t rank) {
    std::size_t const size = links_.size();
    for (std::size_t i = 1; i < size; ++i) send_hello((rank + i) % size);
    while (receive_what_came(std::min(patience_.deadline, Clock::now() + kSlice))) {
      if (patience_.while_waiting) patience_.while_waiting();
    }
    for (auto const& link : links_) {
      if (link.socket.valid()) fcntl(link.socket.fd(), F_SETFL, O_NONBLOCK);
    }
  }

 private:
  // The kernel limits a user's descriptors in flight to the open-file limit of one process (ETOOMANYREFS). Ranks then
  // receive what has arrived until a send succeeds.
  void send_hello(std::size_t peer) {
    if (!links_[peer].socket.valid()) return;
    static std::uint64_t const probe = std::random_device()() | std::uint64_t{std::random_device()()} << 32;
    Hello hello{.probe_address = reinterpret_cast<std::uintptr_t>(&probe), .probe_value = probe, .cores = own_cores()};
    DescriptorMessage message(std::as_writable_bytes(std::span(&hello, 1)));
    message.attach({settings_.own.fd(), settings_.own_bell});
    for (;;) {
      ssize_t const count = sendmsg(links_[peer].socket.fd(), &message.header(), MSG_NOSIGNAL);
      if (count == static_cast<ssize_t>(sizeof hello)) return;  // It fits any socket's buffer.
      if (count >= 0) throw SystemError("sendmsg", EMSGSIZE, with_rank(peer));
      if (errno == EINTR) continue;
      if (errno == EPIPE || errno == ECONNRESET) throw PeerGoneError(static_cast<int>(peer));
      if (errno != ETOOMANYREFS || Clock::now() >= patience_.deadline)
        throw SystemError("sendmsg", errno, with_rank(peer));
      if (!receive_what_came(Clock::now() + kRetryPause)) std::this_thread::sleep_for(kRetryPause);
    }
  }

  /// Receives the hellos that have arrived, from any peer; waits for one until `deadline`.
  /// @returns false if no hello was missing at the call.
  /// @throws SystemError naming a peer whose hello is missing at the patience's deadline.
  bool receive_what_came(Deadline deadline) {
    std::vector<pollfd> entries;
    std::vector<std::size_t> peers;
    for (std::size_t peer = 0; peer < links_.size(); ++peer) {
      if (!awaits_[peer]) continue;
      entries.push_back({.fd = links_[peer].socket.fd(), .events = POLLIN, .revents = 0});
      peers.push_back(peer);
    }
    if (peers.empty()) return false;
    int const count = ::poll(entries.data(), entries.size(), milliseconds_until(deadline));
    if (count < 0 && errno != EINTR) throw SystemError("poll", errno, "connecting");
    if (count <= 0 && Clock::now() >= patience_.deadline)
      throw SystemError(with_rank(peers.front()) + " sent no memory file");
    for (std::size_t i = 0; count > 0 && i < peers.size(); ++i) {
      if (entries[i].revents != 0) receive_hello(peers[i]);
    }
    return true;
  }

  void receive_hello(std::size_t peer) {
    PeerLink& link = links_[peer];
    Hello hello{};
    auto const bytes = std::as_writable_bytes(std::span(&hello, 1));
    std::array<base::FileDescriptor, 2> descriptors;
    for (std::size_t received = 0; received < bytes.size();) {
      DescriptorMessage message(bytes.subspan(received));
      ssize_t const count = receive_some(link.socket.fd(), message, peer, patience_.deadline);
      bool const were_truncated = message.were_descriptors_truncated();
      auto taken = message.take();
      if (were_truncated) throw SystemError("recvmsg", EMFILE, "descriptors of " + with_rank(peer));
      if (received == 0) descriptors = std::move(taken);
      received += static_cast<std::size_t>(count);
    }
    if (!descriptors[1].valid()) throw SystemError(with_rank(peer) + " sent no memory file or no doorbell");
    awaits_[peer] = false;
    // The receive buffers of all ranks have the same size. `part` is what this rank writes in each of them.
    link.region = Region::map(std::move(descriptors[0]), static_cast<int>(links_.size()),
                              settings_.own.receive_buffer().size(), settings_.part);
    link.region.close_fd();
    link.bell = std::move(descriptors[1]);
    link.cores = hello.cores;
    link.pidfd = open_process(link.pid, peer);
    // Another process may reuse the pid, and only a pidfd reveals that. `probe_value`, read at the pid, proves that the
    // pid is the peer's. If the pidfd's process is alive after that, the pid had no other owner since open_process().
    link.can_get =
        settings_.allow_get && link.pidfd.valid() && can_read(link.pid, hello) && !is_readable(link.pidfd.get());
  }

  LinkSettings const& settings_;
  SetupPatience const& patience_;
  std::span<PeerLink> links_;
  std::vector<bool> awaits_;  ///< (size) Peers whose hello is still missing.
};

}  // namespace

std::vector<PeerLink> take_links(std::vector<ControlSocket> control_sockets) {
  std::vector<PeerLink> links(control_sockets.size());
  for (std::size_t peer = 0; peer < links.size(); ++peer) {
    if (!control_sockets[peer].fd.valid()) continue;
    links[peer].socket = OobSocket(std::move(control_sockets[peer].fd));
    links[peer].pid = control_sockets[peer].peer_pid;
  }
  return links;
}

ReadPermission permit_reading(std::span<PeerLink const> links) {
  std::vector<int> peers;
  for (auto const& link : links) {
    if (link.socket.valid()) peers.push_back(link.pid);
  }
  return {ReadPermission::of_this_process(), peers};
}

void exchange_links(int rank, std::span<PeerLink> links, LinkSettings const& settings, SetupPatience const& patience) {
  LinkExchange(links, settings, patience).run(static_cast<std::size_t>(rank));
}

}  // namespace headway::comm::shm
