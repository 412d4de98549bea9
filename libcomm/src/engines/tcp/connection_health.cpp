#include "engines/tcp/connection_health.hpp"

// Not <netinet/tcp.h>, whose tcp_info lacks the newer fields.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace headway::comm::tcp {
namespace {

constexpr unsigned kMaxSilenceMs = 10'000;
constexpr unsigned kMinRetransmits = 5;
constexpr unsigned kMinProbes = 3;

bool get_info(int socket, tcp_info& info) {
  info = {};
  socklen_t length = sizeof(info);
  return ::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) == 0;
}

}  // namespace

bool all_acknowledged(int socket) {
  tcp_info info;
  return !get_info(socket, info) || (info.tcpi_unacked == 0 && info.tcpi_notsent_bytes == 0);
}

void acknowledge_now(int socket) noexcept {
  int const on = 1;
  static_cast<void>(::setsockopt(socket, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof(on)));
}

bool peer_is_silent(int socket) {
  tcp_info info;
  if (!get_info(socket, info)) return false;
  bool const asked = info.tcpi_retransmits >= kMinRetransmits || info.tcpi_probes >= kMinProbes;
  return asked && info.tcpi_last_ack_recv >= kMaxSilenceMs;
}

}  // namespace headway::comm::tcp
