// SPDX-License-Identifier: Apache-2.0

// Composite transport: one endpoint made of several, with one of them for each peer.
//
// Idea: a call about one peer goes to the transport that reaches that peer; a call about all peers goes to every
// transport. All transports write to one receive buffer, so the layer above addresses a slot in the same way for every
// peer.
//
// Example: ranks 0 and 1 share a host, rank 2 is remote. Rank 0 has the transports {shm, verbs} and transport_of_peer
// {0, 0, 1}. put() to rank 1 goes to shm, put() to rank 2 to verbs. poll() asks both.
//
// Invariants:
// - The first transport owns the receive buffer, so it is destroyed last.
// - Only the composite blocks: sleep() waits on one epoll descriptor that nests those of all transports, then calls
//   each transport's sleep() with a deadline in the past, so that it consumes its own wake-up.
// - submit() starts the last transport first: networks come after shm, and their transfer overlaps with the copies on
//   this host.
// Complexity: one index look-up per put; poll() costs the sum of the transports' polls.
// Source: one transport per pair of ranks, as in NCCL.

#include "transport/composite/endpoint.hpp"

#include "system/epoll.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <utility>

namespace headway::comm {
namespace {

constexpr char const* kName = "composite endpoint";

}  // namespace

CompositeEndpoint::CompositeEndpoint(std::vector<std::unique_ptr<Endpoint>> transports,
                                     std::vector<std::size_t> transport_of_peer)
    : transports_(std::move(transports)),
      transport_of_peer_(std::move(transport_of_peer)),
      control_sockets_(make_epoll(kName)),
      activity_(make_epoll(kName)) {
  expects(!transports_.empty(), "at least one transport is needed");
  expects(transport_of_peer_.size() == static_cast<std::size_t>(size()), "one entry is needed for each rank");
  for (auto const& transport : transports_) {
    expects(transport->rank() == rank() && transport->size() == size(), "all transports must be of one rank and group");
    expects(transport->receive_buffer().data() == receive_buffer().data(),
            "all transports must share one receive buffer");
    expects(transport->control_fd() >= 0 && transport->activity_fd() >= 0,
            "a transport must have descriptors to be combined");
    watch(control_sockets_, transport->control_fd(), kName);
    watch(activity_, transport->activity_fd(), kName);
  }
  for (std::size_t const transport : transport_of_peer_)
    expects(transport < transports_.size(), "there is no such transport");
  watch(activity_, bell_.fd(), kName);
}

CompositeEndpoint::~CompositeEndpoint() {
  while (!transports_.empty()) transports_.pop_back();  // The first transport owns the memory that the others write to.
}

void CompositeEndpoint::submit() {
  // Networks first: their transfer overlaps with the copies on this host.
  for (std::size_t i = transports_.size(); i > 0; --i) transports_[i - 1]->submit();
}

bool CompositeEndpoint::poll(ArrivalSink& sink) {
  bool found = false;
  for (auto const& transport : transports_) found = transport->poll(sink) || found;
  return found;
}

void CompositeEndpoint::retract() noexcept {
  for (auto const& transport : transports_) transport->retract();
}

void CompositeEndpoint::arm() {
  bell_.arm();
  for (auto const& transport : transports_) transport->arm();
}

bool CompositeEndpoint::wants_keep_alive() const {
  return std::ranges::any_of(transports_, [](auto const& transport) { return transport->wants_keep_alive(); });
}

void CompositeEndpoint::keep_alive() {
  for (auto const& transport : transports_) transport->keep_alive();
}

void CompositeEndpoint::disarm() {
  for (auto const& transport : transports_) transport->disarm();
  bell_.disarm();
}

void CompositeEndpoint::sleep(Deadline deadline) {
  std::array<epoll_event, 1> events;
  ::epoll_wait(activity_.get(), events.data(), events.size(), milliseconds_until(deadline));
  bell_.drain();
  // These calls do not block. Each lets its transport consume the event that woke this thread.
  for (auto const& transport : transports_) transport->sleep(Deadline::min());
}

HostShare CompositeEndpoint::host_share() const {
  HostShare most;
  for (auto const& transport : transports_) {
    HostShare const share = transport->host_share();
    if (share.num_ranks > most.num_ranks) most = share;
  }
  return most;
}

bool CompositeEndpoint::receives_by_polling() const {
  return std::ranges::any_of(transports_, [](auto const& transport) { return transport->receives_by_polling(); });
}

}  // namespace headway::comm
