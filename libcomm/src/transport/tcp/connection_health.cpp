// SPDX-License-Identifier: Apache-2.0

// Health of a TCP connection, from the kernel's counters.
//
// A host that loses power sends no end of file. Data to it stays unacknowledged, and the kernel would go on for a
// quarter of an hour. Here a peer is given up after about 10 s without an answer to several retransmits or probes.

#include "transport/tcp/connection_health.hpp"

// <netinet/tcp.h> defines a tcp_info without the newer fields, so it is not included.
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

namespace headway::comm::tcp {
namespace {

constexpr unsigned kMaxSilenceMs = 10'000;
constexpr unsigned kMinRetransmits = 5;
constexpr unsigned kMinProbes = 3;

}  // namespace

bool all_acknowledged(int socket) {
  int num_bytes = 0;
  return ::ioctl(socket, SIOCOUTQ, &num_bytes) != 0 || num_bytes == 0;
}

void acknowledge_now(int socket) noexcept {
  int const on = 1;
  static_cast<void>(::setsockopt(socket, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof(on)));
}

bool peer_is_silent(int socket) {
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return false;
  bool const asked = info.tcpi_retransmits >= kMinRetransmits || info.tcpi_probes >= kMinProbes;
  return asked && info.tcpi_last_ack_recv >= kMaxSilenceMs;
}

}  // namespace headway::comm::tcp
