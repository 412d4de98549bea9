#include "engines/shm/init.hpp"

#include "available_cores.hpp"
#include "descriptor_message.hpp"
#include "engines/epoll.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <utility>

namespace headway::comm::shm {

namespace {

constexpr int kExchangeTimeoutS = 60;

/// Sent once to each peer, together with the descriptors of the memory file and of the doorbell.
struct Hello {
  std::uint64_t probe_address;  ///< The peer tries to read `probe_value` there.
  std::uint64_t probe_value;
  cpu_set_t cores;
};

std::string with_rank(std::size_t peer) { return "rank " + std::to_string(peer); }

void send_hello(int socket, Hello hello, int memory_fd, int bell_fd, std::size_t peer) {
  DescriptorMessage message(std::as_writable_bytes(std::span(&hello, 1)));
  message.attach({memory_fd, bell_fd});
  if (sendmsg(socket, &message.header(), MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof hello)) {
    throw SystemError("sendmsg", errno, with_rank(peer));
  }
}

Hello receive_hello(int socket, FileDescriptor& memory, FileDescriptor& bell, std::size_t peer) {
  timeval const limit{.tv_sec = kExchangeTimeoutS, .tv_usec = 0};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  Hello hello{};
  DescriptorMessage message(std::as_writable_bytes(std::span(&hello, 1)));
  ssize_t const received = recvmsg(socket, &message.header(), MSG_CMSG_CLOEXEC | MSG_WAITALL);
  if (received < 0) throw SystemError("recvmsg", errno, with_rank(peer));
  auto descriptors = message.take();
  if (received != static_cast<ssize_t>(sizeof hello) || !descriptors[1].valid()) {
    throw SystemError("recvmsg", ECONNRESET, with_rank(peer) + " went away while connecting");
  }
  memory = std::move(descriptors[0]);
  bell = std::move(descriptors[1]);
  return hello;
}

/// Yama's level 1 lets only ancestors read a process's memory, unless it says otherwise; ranks are mostly siblings.
void permit_reading_by_siblings() {
  std::ifstream file("/proc/sys/kernel/yama/ptrace_scope");
  int scope = 0;
  if (file >> scope && scope == 1) prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}

bool can_read(int pid, Hello const& hello) {
  if (pid <= 0) return false;
  std::uint64_t value = 0;
  iovec const local{.iov_base = &value, .iov_len = sizeof value};
  iovec const remote{.iov_base = reinterpret_cast<void*>(hello.probe_address), .iov_len = sizeof value};
  ssize_t const count = process_vm_readv(pid, &local, 1, &remote, 1, 0);
  return count == static_cast<ssize_t>(sizeof value) && value == hello.probe_value;
}

}  // namespace

std::vector<PeerLink> exchange_links(int rank, std::vector<Lifeline> lifelines, Region const& own, int own_bell,
                                     LandingRange part) {
  permit_reading_by_siblings();
  static std::uint64_t const probe = std::random_device()() | std::uint64_t{std::random_device()()} << 32;
  Hello const own_hello{
      .probe_address = reinterpret_cast<std::uintptr_t>(&probe), .probe_value = probe, .cores = own_cores()};
  auto const size = static_cast<int>(lifelines.size());
  std::vector<PeerLink> links(lifelines.size());
  for (std::size_t peer = 0; peer < links.size(); ++peer) {
    if (static_cast<int>(peer) == rank || lifelines[peer].fd < 0) continue;
    links[peer].socket = NoticeSocket(FileDescriptor(lifelines[peer].fd));
    links[peer].pid = lifelines[peer].peer_pid;
    send_hello(lifelines[peer].fd, own_hello, own.fd(), own_bell, peer);
  }
  for (std::size_t peer = 0; peer < links.size(); ++peer) {
    PeerLink& link = links[peer];
    if (!link.socket.valid()) continue;
    FileDescriptor memory;
    Hello const hello = receive_hello(link.socket.fd(), memory, link.bell, peer);
    link.region = Region::map(std::move(memory), size, own.landing().size(), part);
    link.region.close_fd();
    link.cores = hello.cores;
    if (link.pid > 0) link.pidfd = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, link.pid, 0)));
    // Without a pidfd nothing would tell when the number belongs to another process. With one, the peer's own secret
    // word under that number shows that the pidfd is the peer's too, unless the process has ended since.
    link.can_get = link.pidfd.valid() && can_read(link.pid, hello) && !is_readable(link.pidfd.get());
    fcntl(link.socket.fd(), F_SETFL, O_NONBLOCK);
  }
  return links;
}

}  // namespace headway::comm::shm
