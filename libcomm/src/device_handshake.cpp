// How a device group meets its peers: hellos over the group, then memory descriptors through mailboxes.

#include "device_group_impl.hpp"
#include "rendezvous/host_identity.hpp"
#include "rendezvous/socket_address.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace headway::comm {

namespace {

/// Is `address`, which belongs to a peer, one of `addresses`?
bool is_among(std::vector<SocketAddress> const& addresses, std::string const& address) {
  return std::ranges::any_of(addresses, [&](SocketAddress const& each) {
    auto const own = each.to_string();
    return own.starts_with(address + ":") || own.starts_with("[" + address + "]:");
  });
}

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
  set.hello = own_hello(set);
  auto const own_addresses = host_addresses();
  // Offers come first: a rank that needs this memory may not wait for this rank's next call. All offers come before any
  // hello, since a hello cannot be taken back.
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_ && is_among(own_addresses, group_.address(peer))) offer_link(set, peer);
  }
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) group_.tell(peer, introductions_.greeting(peer, set.hello));
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

nvlink::Hello DeviceGroupImpl::await_hello(LinkSet const& set, int peer, Deadline deadline) {
  auto const& own = set.hello;
  auto const theirs = introductions_.await_hello(set.number, peer, deadline, [this] { throw_if_unhealthy(); });
  auto const name = "rank " + std::to_string(peer);
  expects(theirs.slot_bytes == own.slot_bytes && theirs.device_bytes == own.device_bytes &&
              theirs.host_bytes == own.host_bytes,
          name + " has slots of " + std::to_string(theirs.slot_bytes) + " bytes, " +
              std::to_string(theirs.device_bytes) + " in all, on its device, and this rank of " +
              std::to_string(own.slot_bytes) + ", " + std::to_string(own.device_bytes) + " in all: they must be alike");
  expects(theirs.host == own.host || !set.remote_layout.channels.empty(),
          name + " is on another host: slots are for ranks of one host");
  return theirs;
}

void DeviceGroupImpl::meet(LinkSet& set, int peer, Deadline deadline) {
  auto const at = static_cast<std::size_t>(peer);
  if (set.links[at] != nullptr) return;
  std::shared_ptr<nvlink::Link> link;
  try {
    auto const theirs = await_hello(set, peer, deadline);
    if (theirs.host == set.hello.host) {
      link = meet_on_this_host(set, peer, theirs, deadline);
    } else {
      link = std::make_shared<nvlink::Link>(context_, set.remote_layout);
      if (relay_ == nullptr) relay_ = std::make_unique<nvlink::Relay>(group_);
    }
  } catch (SystemError const& error) {  // Treated like an operation that is late.
    group_.abort(error.what());
    throw_if_failed();
  }
  std::lock_guard const lock(watch_mutex_);
  met_.push_back(link);
  set.links[at] = std::move(link);
}

void DeviceGroupImpl::meet_all(LinkSet& set) {
  auto const deadline = Clock::now() + group_.timeout();
  try {
    introduce(set);
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) static_cast<void>(await_hello(set, peer, deadline));  // All ranks refuse the same peers.
    }
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) meet(set, peer, deadline);
    }
    introductions_.await_room(set.number, deadline, [this] { throw_if_unhealthy(); });
  } catch (SystemError const& error) {
    forget_links(set);
    group_.abort(error.what());
    throw_if_failed();
  } catch (std::exception const&) {
    forget_links(set);
    throw;
  }
}

std::shared_ptr<nvlink::Link> DeviceGroupImpl::meet_on_this_host(LinkSet& set, int peer, nvlink::Hello const& theirs,
                                                                 Deadline deadline) {
  auto const& link = set.offered[static_cast<std::size_t>(peer)];
  if (link == nullptr) offer_link(set, peer);
  link->map_peer(introductions_.await_descriptors(set.number, peer, deadline, [this] { throw_if_unhealthy(); }));
  link->shares_device = std::memcmp(&theirs.device, &set.hello.device, sizeof theirs.device) == 0;
  return link;
}

void DeviceGroupImpl::throw_if_unhealthy() {
  if (auto status = group_.health(); !status.ok()) throw OperationError(std::move(status));
}

void DeviceGroupImpl::forget_links(LinkSet const& set) {
  introductions_.forget(set.number);
  std::lock_guard const lock(watch_mutex_);
  for (auto const& link : set.links) {
    std::erase(met_, link);
  }
}

}  // namespace headway::comm
