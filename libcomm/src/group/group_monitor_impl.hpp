// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/group_monitor.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace headway::comm {

class GroupCore;

/// How this rank reaches the others, as found while connecting.
struct ConnectionInfo {
  std::vector<std::string> addresses = {};  ///< (size) Numeric addresses of the ranks' hosts, or empty. "": this host.
  std::string own_address = "127.0.0.1";    ///< Address at which peers reach this rank.
  std::string generation = {};              ///< Random text of this connection attempt; no other group has it.
};

/// Health, statistics, traces, flight records and lag advice of a GroupCore, and the addresses of its ranks.
class GroupMonitorImpl final : public GroupMonitor {
 public:
  /// `core` may be constructed later.
  GroupMonitorImpl(GroupCore& core, ConnectionInfo connection_info)
      : core_(core), connection_info_(std::move(connection_info)) {}

  [[nodiscard]] PeerTraits traits(int peer) const override;
  [[nodiscard]] std::string address(int peer) const override;
  [[nodiscard]] std::string own_address() const override { return connection_info_.own_address; }
  [[nodiscard]] std::string const& generation() const override { return connection_info_.generation; }
  void on_peer_ahead(int channel, std::function<void(std::uint64_t seq)> callback) override;
  [[nodiscard]] Status health() override;
  [[nodiscard]] GroupStats stats() override;
  void reset_stats() override;
  void set_trace_capacity(std::size_t capacity) override;
  std::vector<TraceEvent> drain_trace() override;
  [[nodiscard]] std::vector<FlightRecord> flight_records() override;
  [[nodiscard]] int recommended_max_lag(int channel) override;

 private:
  GroupCore& core_;
  ConnectionInfo const connection_info_;
};

}  // namespace headway::comm
