// SPDX-License-Identifier: Apache-2.0

// How a device group meets its peers, that is, makes its links usable: hellos over the group, then file descriptors
// of its memory through mailboxes (datagram sockets).
//
// Idea: a rank may use its device long before its peers do, so no rank may wait for all others. When a device
// group is made, it only sends: a hello to every peer, and descriptors of its memory for each peer that may be on this
// host. The first operation with a peer then waits for that peer's hello and descriptors. By then these have usually
// arrived.
//
// Example: rank 0 makes its device group at second 1, rank 1 at second 9. Rank 0 sends its hello and goes on. At
// second 9 the hello of rank 1 arrives at rank 0's group, and whichever thread receives it sends the descriptors. Rank
// 1 never waits for a call of rank 0.
//
// Invariants:
// - Memory is exported before the hello is sent, because the hello invites the peer to ask for it.
// - The host identity in the hello decides whether a peer is on this host. Addresses only tell for which peers an
//   export is worth making in advance.
// - DeviceSlots are made by all ranks together, so there a rank does wait for all hellos before it keeps any link. All
//   ranks then refuse the same peers.
// Complexity: O(size) hellos per rank, and two descriptors per peer on the host.

#include "bootstrap/host_identity.hpp"
#include "device/device_group_impl.hpp"
#include "system/socket_address.hpp"

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

peer_copy::Hello DeviceGroupImpl::own_hello(LinkSet const& set) const {
  peer_copy::Hello hello{.set = set.index,
                         .device = context_->uuid(),
                         .host_bytes = set.layout.host_bytes,
                         .device_bytes = set.layout.device_bytes,
                         .slot_bytes = set.layout.channels.front().slot_bytes};
  host_identity().copy(hello.host.data(), hello.host.size() - 1);
  return hello;
}

void DeviceGroupImpl::run_bootstrap(LinkSet& set) {
  set.exported.resize(static_cast<std::size_t>(size_));
  set.links.resize(static_cast<std::size_t>(size_));
  set.hello = own_hello(set);
  auto const own_addresses = host_addresses();
  // Exports come first: a rank that needs this memory may not wait for this rank's next call. All exports come before
  // any hello, since a hello cannot be taken back.
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_ && is_among(own_addresses, group_.monitor().address(peer))) export_link(set, peer);
  }
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) group_.admin().send_oob(peer, ipc_exchange_.greeting(peer, set.hello));
  }
}

void DeviceGroupImpl::export_link(LinkSet& set, int peer) {
  auto memory = set.segment;
  if (memory == nullptr) {
    memory = std::make_shared<peer_copy::SharedSegment>(context_, set.layout.device_bytes);
    stats_.receive_buffer_bytes += set.layout.device_bytes;
  }
  auto& link = set.exported[static_cast<std::size_t>(peer)];
  link = std::make_shared<peer_copy::Link>(context_, set.layout, std::move(memory), rank_, peer);
  ipc_exchange_.send_descriptors(set.index, peer, link->descriptors());
}

void DeviceGroupImpl::meet_peers(Exchange const& exchange) {
  for (auto const& block : exchange.sends) meet(*exchange.channel->set, block.peer, exchange.deadline);
  for (auto const& block : exchange.receives) meet(*exchange.channel->set, block.peer, exchange.deadline);
}

peer_copy::Hello DeviceGroupImpl::await_hello(LinkSet const& set, int peer, Deadline deadline) {
  auto const& own = set.hello;
  auto const theirs = ipc_exchange_.await_hello(set.index, peer, deadline, [this] { throw_if_unhealthy(); });
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
  std::shared_ptr<peer_copy::Link> link;
  try {
    auto const theirs = await_hello(set, peer, deadline);
    if (theirs.host == set.hello.host) {
      link = meet_on_this_host(set, peer, theirs, deadline);
    } else {
      link = std::make_shared<peer_copy::Link>(context_, set.remote_layout);
      if (proxy_ == nullptr) proxy_ = std::make_unique<peer_copy::HostProxy>(group_);
    }
  } catch (SystemError const& error) {  // Treated like an operation that is late.
    group_.admin().abort(error.what());
    throw_if_failed();
  }
  std::lock_guard const lock(watch_mutex_);
  met_.push_back(link);
  set.links[at] = std::move(link);
}

void DeviceGroupImpl::meet_all(LinkSet& set) {
  auto const deadline = Clock::now() + group_.admin().timeout();
  try {
    run_bootstrap(set);
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) static_cast<void>(await_hello(set, peer, deadline));  // All ranks refuse the same peers.
    }
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) meet(set, peer, deadline);
    }
    ipc_exchange_.await_room(set.index, deadline, [this] { throw_if_unhealthy(); });
  } catch (SystemError const& error) {
    forget_links(set);
    group_.admin().abort(error.what());
    throw_if_failed();
  } catch (std::exception const&) {
    forget_links(set);
    throw;
  }
}

std::shared_ptr<peer_copy::Link> DeviceGroupImpl::meet_on_this_host(LinkSet& set, int peer,
                                                                    peer_copy::Hello const& theirs, Deadline deadline) {
  auto const& link = set.exported[static_cast<std::size_t>(peer)];
  if (link == nullptr) export_link(set, peer);
  link->map_peer(ipc_exchange_.await_descriptors(set.index, peer, deadline, [this] { throw_if_unhealthy(); }));
  link->shares_device = std::memcmp(&theirs.device, &set.hello.device, sizeof theirs.device) == 0;
  return link;
}

void DeviceGroupImpl::throw_if_unhealthy() {
  if (auto status = group_.monitor().health(); !status.ok()) throw OperationError(std::move(status));
}

void DeviceGroupImpl::forget_links(LinkSet const& set) {
  ipc_exchange_.forget(set.index);
  std::lock_guard const lock(watch_mutex_);
  for (auto const& link : set.links) {
    std::erase(met_, link);
  }
}

}  // namespace headway::comm
