// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/endpoint.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headway::comm {

/// Progress of a rank: number of operations before the first one that it has not completed.
struct Progress {
  std::vector<std::uint64_t> all_to_alls;  ///< By channel.
  std::uint64_t collectives = 0;
};

/// Consensus of the remaining ranks of a failed group on who they are. Each sends claims: who the members are in its
/// view, in which attempt to connect them, and its progress. survivors.cpp explains the protocol.
///
/// Does no input or output: it consumes OOB messages as an ArrivalSink, and returns the OOB messages that the caller
/// must send. Used under the group's lock.
class Survivors final : public ArrivalSink {
 public:
  Survivors(int rank, int size);

  /// Is an OOB message one of this protocol? If so, its sender has left the failed group.
  [[nodiscard]] static bool is_survivor_message(std::string_view message);

  // ArrivalSink
  void arrived(int /*source*/, Tag /*tag*/) override {}  // A failed group has no waiters.
  void on_oob(int peer, std::string_view text) override;
  void lost(int peer, std::string_view reason) override;

  /// This rank wants to go on, without lost ranks and without `to_exclude`.
  void begin(Progress own, std::span<int const> to_exclude);
  /// Drops the members that have not sent a claim.
  void exclude_silent();
  /// Connecting the members failed in `attempt`: all members must agree again, for the next attempt.
  void give_up(std::uint32_t attempt);
  /// OOB message that this rank has its new group. Peers then do not take the end of its old connections for a loss.
  [[nodiscard]] std::string done_oob() const;

  /// Claim to send to all peers, if it changed since the last call.
  [[nodiscard]] std::optional<std::string> take_news();
  /// The present claim, changed or not.
  [[nodiscard]] std::string claim_oob() const;
  /// Do the newest claims of all members name this rank's attempt and members?
  [[nodiscard]] bool has_agreed() const;
  [[nodiscard]] std::uint32_t attempt() const { return attempt_; }
  /// Members in ascending order.
  [[nodiscard]] std::vector<int> members() const;
  /// Minimum of the progress of all members. Valid once has_agreed().
  [[nodiscard]] Progress common_progress() const;
  /// A rank that goes on without this one, if there is one.
  [[nodiscard]] std::optional<int> excluded_by() const { return excluded_by_; }
  /// Members that have not sent the same claim as this rank: "rank 2, rank 5".
  [[nodiscard]] std::string who_is_awaited() const;

  /// Does any member have its new group already?
  [[nodiscard]] bool is_anyone_done() const;

  /// Key-value store of one attempt, through which the members find each other. value_oob() keeps a value and
  /// returns the OOB message that carries it.
  [[nodiscard]] std::string value_oob(std::uint32_t attempt, std::string const& key, std::string_view value);
  [[nodiscard]] std::optional<std::string> value(std::uint32_t attempt, std::string const& key) const;

 private:
  /// Newest claim of a peer.
  struct Claim {
    std::uint32_t attempt = 0;
    std::vector<bool> members;
    Progress progress;
  };

  void on_claim(int peer, std::span<std::byte const> body);
  void drop(int peer);
  [[nodiscard]] bool agrees(int peer) const;

  int rank_;
  std::uint32_t attempt_ = 0;
  std::vector<bool> members_;                 ///< (size) Ranks that this rank takes for members.
  std::vector<std::optional<Claim>> claims_;  ///< (size) Newest claim of each peer.
  std::vector<bool> is_done_;                 ///< (size) Peers that have their new group.
  Progress own_;
  std::optional<int> excluded_by_;
  bool has_begun_ = false, has_news_ = false;
  std::map<std::pair<std::uint32_t, std::string>, std::string> values_;  ///< Keyed by attempt and key.
};

}  // namespace headway::comm
