// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/endpoint.hpp"
#include "headway/comm/flight_record.hpp"
#include "headway/comm/status.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace headway::comm {

/// Counters towards one peer, since connecting or reset_stats().
struct PeerStats {
  double wait_s = 0;        ///< Seconds that this rank waited for this peer, the last one to arrive.
  std::uint64_t waits = 0;  ///< Number of waits in `wait_s`.
  std::uint64_t bytes_sent = 0, bytes_received = 0, messages_sent = 0, messages_received = 0;
  std::uint64_t repeated_fragments = 0;  ///< Notifications dropped because their fragment had already arrived.
};

/// Counters of a group on this rank, since connecting or reset_stats().
struct GroupStats {
  std::vector<PeerStats> peers;  ///< (size)
  /// Entry i: number of all-to-alls that completed while i later ones of their channel were posted.
  std::vector<std::uint64_t> lag_histogram;
  std::vector<double> wait_s_by_lag;  ///< Entry i: seconds waited at lag i.
  std::uint64_t operations = 0;       ///< All-to-alls completed.
  std::uint64_t rts_revoked = 0;      ///< Large blocks that this rank sent after their receiver did not fetch them.
  /// Blocks larger than a slot (slot_bytes) that this rank sent while max_lag was above 0. Their all-to-alls ended only
  /// when the receivers had taken part, so this rank could not run ahead.
  std::uint64_t lag_lost = 0;
  std::uint64_t queued = 0;                ///< All-to-alls that could not be posted at their start.
  std::uint64_t receive_buffer_bytes = 0;  ///< Receive memory: library-owned bytes that peers write to, as reserved.
};

/// One completed all-to-all, for traces. Times are seconds of Clock since its epoch.
struct TraceEvent {
  std::uint64_t seq;
  int channel;
  double started_s, posted_s, completed_s;
  std::uint64_t bytes_sent, bytes_received;
  int last_peer;  ///< Source of the last block that arrived; -1 if none came.
  int lag;        ///< Number of later operations of its channel that were posted when it completed.
};

/// Observes a group: how its ranks reach each other, its health, its counters and its records. No call here changes a
/// result. Thread-safe; the group owns it (Group::monitor()).
class GroupMonitor {
 public:
  virtual ~GroupMonitor() = default;

  /// Transport to `peer`, and what it can do.
  [[nodiscard]] virtual PeerTraits traits(int peer) const = 0;
  /// Numeric address at which this rank reaches a peer's host; 127.0.0.1 for a peer on this host.
  [[nodiscard]] virtual std::string address(int peer) const = 0;
  /// Numeric address of this host at which peers reached this rank, for further connections among the same ranks. An
  /// address of options().interface if one is given; 127.0.0.1 if all ranks are on this host.
  [[nodiscard]] virtual std::string own_address() const = 0;
  /// Random text, the same on all ranks of this group. Groups connected earlier or later under the same name have other
  /// texts.
  [[nodiscard]] virtual std::string const& generation() const = 0;

  /// Calls `callback` with the number of an all-to-all of `channel` that a peer has posted and this rank has not
  /// started: the newest known one, and again for later ones only. A rank that has nothing to send learns by it that
  /// peers wait for it. The group's callback thread runs it, also while no thread of this rank is in the library, under
  /// the terms of Group::on_done(); not after the group has failed. It replaces the callback of before; an empty one
  /// ends the calls, though one that has begun may still run. While a callback is set, a message that arrives while
  /// this rank is not in the library costs its sender a system call.
  /// @throws SystemError if the system has no thread left
  virtual void on_peer_ahead(int channel, std::function<void(std::uint64_t seq)> callback) = 0;

  /// First failure of the group, or ok. Cheap. Detects a lost peer even if no operation is pending.
  [[nodiscard]] virtual Status health() = 0;

  [[nodiscard]] virtual GroupStats stats() = 0;
  virtual void reset_stats() = 0;
  /// Starts (capacity > 0) or stops (0) tracing, for at most `capacity` events per channel. drain_trace() returns and
  /// clears the events.
  virtual void set_trace_capacity(std::size_t capacity) = 0;
  virtual std::vector<TraceEvent> drain_trace() = 0;

  /// Pending operations and the last completed ones (options().flight_records), in the order of their starts. For a
  /// failed group: its state when it failed.
  [[nodiscard]] virtual std::vector<FlightRecord> flight_records() = 0;

  /// Recommended max_lag: the smallest one, up to options().max_lag_limit, under which the latest all-to-alls of the
  /// channel would have taken at most 2.5% longer than with the best one (details: lag_advisor.hpp). For the first
  /// 24 exchanges it is the limit. The group does not apply it: the caller decides how far its loop runs ahead.
  /// @throws UsageError without options().adapt_lag.
  [[nodiscard]] virtual int recommended_max_lag(int channel) = 0;
};

}  // namespace headway::comm
