// SPDX-License-Identifier: Apache-2.0

// Monitoring of a group: its addresses, statistics, traces, flight records and lag advice.
//
// Each call takes the group's lock for as long as it copies, and only health() moves the group on. What is fixed once
// the group is connected, such as the traits of a peer, needs no lock. All answers are of this rank alone: no call
// here talks to peers.

#include "group/group_monitor_impl.hpp"

#include "group/group_core.hpp"

namespace headway::comm {

using ProgressLock = GroupCore::ProgressLock;

PeerTraits GroupMonitorImpl::traits(int peer) const { return core_.context().endpoint().traits(peer); }

std::string GroupMonitorImpl::address(int peer) const {
  core_.expect_peer(peer, "address");
  auto const at = static_cast<std::size_t>(peer);
  auto const& addresses = connection_info_.addresses;
  return at < addresses.size() && !addresses[at].empty() ? addresses[at] : "127.0.0.1";
}

void GroupMonitorImpl::on_peer_ahead(int channel, std::function<void(std::uint64_t seq)> callback) {
  core_.expect_channel(channel, "on_peer_ahead");
  ProgressLock const lock(core_);
  core_.on_peer_ahead(channel, std::move(callback));
  core_.progress();  // Finds what arrived before.
}

Status GroupMonitorImpl::health() {
  ProgressLock const lock(core_);
  core_.progress();
  return core_.failure();
}

GroupStats GroupMonitorImpl::stats() {
  ProgressLock const lock(core_);
  return core_.context().stats();
}

void GroupMonitorImpl::reset_stats() {
  ProgressLock const lock(core_);
  auto& stats = core_.context().stats();
  auto const receive_buffer_bytes = stats.receive_buffer_bytes;
  stats = GroupStats();
  stats.peers.resize(static_cast<std::size_t>(core_.size()));
  stats.receive_buffer_bytes = receive_buffer_bytes;
}

void GroupMonitorImpl::set_trace_capacity(std::size_t capacity) {
  ProgressLock const lock(core_);
  for (auto const& channel : core_.channels().all_to_alls()) channel->observers().set_trace_capacity(capacity);
}

std::vector<TraceEvent> GroupMonitorImpl::drain_trace() {
  ProgressLock const lock(core_);
  std::vector<TraceEvent> events;
  for (auto const& channel : core_.channels().all_to_alls()) {
    auto part = channel->observers().drain_trace();
    events.insert(events.end(), part.begin(), part.end());
  }
  return events;
}

std::vector<FlightRecord> GroupMonitorImpl::flight_records() {
  ProgressLock const lock(core_);
  return core_.flight_records();
}

int GroupMonitorImpl::recommended_max_lag(int channel) {
  core_.expect_channel(channel, "recommended_max_lag");
  ProgressLock const lock(core_);
  return core_.channels().all_to_all(channel).observers().recommended_max_lag();
}

}  // namespace headway::comm
