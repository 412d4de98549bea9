// SPDX-License-Identifier: Apache-2.0

// The slow path of the shared-memory endpoint: sleep, OOB messages, and detection of lost peers.

#include "system/epoll.hpp"
#include "transport/shm/endpoint.hpp"

#include <array>

namespace headway::comm {

void ShmEndpoint::sleep(Deadline deadline) {
  std::array<epoll_event, 2> events;
  int const count = epoll_wait(activity_.get(), events.data(), events.size(), milliseconds_until(deadline));
  for (int i = 0; i < count; ++i) {
    bool const is_control_socket = events[static_cast<std::size_t>(i)].data.fd == control_sockets_.get();
    is_control_socket ? control_is_ready_.store(true) : bell_.drain();
  }
}

void ShmEndpoint::send_oob(int peer, std::string_view text) noexcept {
  auto const& link = links_[index(peer)];
  if (link.socket.valid() && !link.lost) link.socket.send(text);
}

bool ShmEndpoint::check_control_sockets(ArrivalSink& sink) {
  control_is_ready_.store(false);
  if (!is_readable(control_sockets_.get())) return false;
  // Deliver all OOB messages before any loss: a peer that left because another rank was lost says so in an OOB message.
  std::vector<Source*> leaving;
  for (auto& source : sources_) {
    auto& link = links_[index(source.rank)];
    if (link.lost) continue;
    link.has_ended = link.pidfd.valid() && is_readable(link.pidfd.get());
    bool const is_open = link.socket.receive(source.rank, sink);
    if (!is_open || link.has_ended) leaving.push_back(&source);
  }
  for (auto* const source : leaving) {
    take_cells(*source, sink);  // Puts that it made before it left are delivered before its loss.
    bool const has_ended = links_[index(source->rank)].has_ended;
    report_loss(source->rank, has_ended ? "its process ended" : "it closed the connection", sink);
  }
  return true;
}

void ShmEndpoint::report_loss(int peer, std::string_view reason, ArrivalSink& sink) {
  auto& link = links_[index(peer)];
  link.lost = true;
  epoll_ctl(control_sockets_.get(), EPOLL_CTL_DEL, link.socket.fd(), nullptr);
  if (link.pidfd.valid()) epoll_ctl(control_sockets_.get(), EPOLL_CTL_DEL, link.pidfd.get(), nullptr);
  sink.lost(peer, reason);
}

}  // namespace headway::comm
