// How a device group meets its peers: hellos over the group, then descriptors of memory from mailbox to mailbox.

#include "device_group_impl.hpp"
#include "rendezvous/host_identity.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

namespace headway::comm {

namespace {

/// How peers are reached that may be on this host, by shared memory or not.
constexpr char const* kLoopback = "127.0.0.1";

}  // namespace

nvlink::Hello DeviceGroupImpl::own_hello(LinkSet const& set) const {
  nvlink::Hello hello{.set = set.number,
                      .device = context_->uuid(),
                      .host_bytes = set.layout.host_bytes,
                      .device_bytes = set.layout.device_bytes,
                      .slot_bytes = set.layout.channels.front().slot_bytes};
  host_identity().copy(hello.host.data(), hello.host.size() - 1);
  return hello;
}

void DeviceGroupImpl::introduce(LinkSet& set) {
  set.offered.resize(static_cast<std::size_t>(size_));
  set.links.resize(static_cast<std::size_t>(size_));
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    // Before anybody asks for it: a rank that needs this one's memory may not wait for this one's next call.
    if (group_.address(peer) == kLoopback) offer_link(set, peer);
    group_.tell(peer, introductions_.greeting(peer, own_hello(set)));
  }
}

void DeviceGroupImpl::offer_link(LinkSet& set, int peer) {
  auto memory = set.segment;
  if (memory == nullptr) {
    memory = std::make_shared<nvlink::SharedSegment>(context_, set.layout.device_bytes);
    stats_.landing_bytes += set.layout.device_bytes;
  }
  auto& link = set.offered[static_cast<std::size_t>(peer)];
  link = std::make_shared<nvlink::Link>(context_, set.layout, std::move(memory), rank_, peer);
  introductions_.offer(set.number, peer, link->descriptors());
}

void DeviceGroupImpl::meet_peers(Exchange const& exchange) {
  for (auto const& block : exchange.sends) meet(*exchange.channel->set, block.peer, exchange.deadline);
  for (auto const& block : exchange.receives) meet(*exchange.channel->set, block.peer, exchange.deadline);
}

void DeviceGroupImpl::meet(LinkSet& set, int peer, Deadline deadline) {
  auto const at = static_cast<std::size_t>(peer);
  if (set.links[at] != nullptr) return;
  auto const look = [this] {
    if (auto status = group_.health(); !status.ok()) throw OperationError(std::move(status));
  };
  auto const own = own_hello(set);
  std::array<FileDescriptor, 2> descriptors;
  nvlink::Hello theirs;
  try {
    theirs = introductions_.await_hello(set.number, peer, deadline, look);
    auto const name = "rank " + std::to_string(peer);
    expects(theirs.host == own.host,
            name + " is on another host: CUDA tensors are exchanged inside one host only so far");
    expects(theirs.slot_bytes == own.slot_bytes && theirs.device_bytes == own.device_bytes &&
                theirs.host_bytes == own.host_bytes,
            name + " has slots of " + std::to_string(theirs.slot_bytes) + " bytes, " +
                std::to_string(theirs.device_bytes) + " in all, on its device, and this rank of " +
                std::to_string(own.slot_bytes) + ", " + std::to_string(own.device_bytes) +
                " in all: they must be alike");
    if (set.offered[at] == nullptr) offer_link(set, peer);
    descriptors = introductions_.await_descriptors(set.number, peer, deadline, look);
  } catch (SystemError const& error) {  // As any operation that is late.
    group_.abort(error.what());
    throw_if_failed();
  }
  auto const& link = set.offered[at];
  link->map_peer(std::move(descriptors));
  link->shares_device = std::memcmp(&theirs.device, &own.device, sizeof own.device) == 0;
  std::lock_guard const lock(watch_mutex_);
  met_.push_back(link);
  set.links[at] = link;
}

void DeviceGroupImpl::forget_links(LinkSet const& set) {
  introductions_.forget(set.number);
  std::lock_guard const lock(watch_mutex_);
  for (auto const& link : set.links) {
    std::erase(met_, link);
  }
}

}  // namespace headway::comm
