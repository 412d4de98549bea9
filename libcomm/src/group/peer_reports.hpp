// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/endpoint.hpp"
#include "headway/comm/status.hpp"

#include <chrono>
#include <cstddef>
#include <string_view>
#include <vector>

namespace headway::comm {

/// Reports about a group's peers: who left, who takes no more messages, who is lost, and the first failure among these.
/// The group fails with that after the poll that found it. Used under the group's lock.
class PeerReports {
 public:
  explicit PeerReports(int size)
      : left_at_(static_cast<std::size_t>(size)),
        has_gone_(static_cast<std::size_t>(size)),
        refused_at_(static_cast<std::size_t>(size)) {}

  /// `peer` sent its leave message. That is no failure yet: this rank may need nothing of it.
  void left(int peer, Clock::time_point now) { left_at_[static_cast<std::size_t>(peer)] = now; }
  /// `peer` leaves and takes no more messages of this rank.
  void refused(int peer, Clock::time_point now) { refused_at_[static_cast<std::size_t>(peer)] = now; }
  /// The connection to `peer` ended.
  void lost(int peer, std::string_view reason);
  /// The group failed at a peer. Only the first failure counts.
  void failed_elsewhere(Status failure);

  /// First failure found, or ok.
  [[nodiscard]] Status const& failure() const { return failure_; }
  /// Did this rank see the failure itself? Then it tells the peers: those that see this rank's end first learn whose
  /// loss was the cause.
  [[nodiscard]] bool failure_is_ours() const { return failure_is_ours_; }

  [[nodiscard]] bool has_any_gone() const { return any_gone_; }
  /// Has `peer` left, and has all that it put before arrived?
  [[nodiscard]] bool has_gone(int peer) const { return has_gone_[static_cast<std::size_t>(peer)]; }
  /// Takes peers that left long ago for gone. A forked child may keep their sockets open, so that no loss shows.
  void expire(Clock::time_point now);
  /// Did `peer` refuse messages at least kLeaveTime ago? Then it will never take a message that it has not taken by
  /// now: its reports of earlier ones have arrived.
  [[nodiscard]] bool refuses(int peer, Clock::time_point now) const;

  /// After this time, all that a rank put before its leave message has arrived. A symptom, an error that another
  /// rank's failure may explain, has no such cause if none was reported by then.
  static constexpr std::chrono::seconds kLeaveTime{1};

 private:
  std::vector<Clock::time_point> left_at_;  ///< (size) When a peer sent its leave message; the epoch: it has not.
  std::vector<bool> has_gone_;              ///< (size) The peer sent its leave message, and all its puts have arrived.
  bool any_gone_ = false;
  std::vector<Clock::time_point> refused_at_;  ///< (size) When the peer refused; the epoch: it has not.
  Status failure_;
  bool failure_is_ours_ = false;
};

}  // namespace headway::comm
