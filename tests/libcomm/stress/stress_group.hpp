// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "channel/protocol_rules.hpp"
#include "headway/comm/group.hpp"
#include "history_plan.hpp"
#include "late_endpoint.hpp"
#include "random.hpp"
#include "rank_script.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace headway::comm::stress {

/// Counters of some histories, as evidence that they exercised the code.
struct Tally {
  std::uint64_t histories = 0, steps = 0;
  std::uint64_t exchanges = 0;  ///< Completed, summed over ranks.
  std::uint64_t queued = 0;     ///< Exchanges that could not be posted at their start.
  std::uint64_t lag_lost = 0;   ///< Blocks that were too large for a slot, so that their exchange could not lag.
  std::uint64_t revoked = 0;    ///< Large blocks that their sender sent itself, because the receiver did not read them.
  std::uint64_t repeated = 0;   ///< Notifications that came twice.
  std::uint64_t messages = 0;   ///< Messages received, those of exchanges included.
  std::uint64_t most_lag = 0;   ///< Largest number of later exchanges that were posted when one completed.
  std::uint64_t lagged = 0;     ///< Exchanges that completed while later ones were posted.

  void add(GroupStats const& stats);
  Tally& operator+=(Tally const& other);
};

/// All ranks of one group in one thread. Their `inproc` endpoints are delayed by LateEndpoint, and CheckedEndpoint
/// verifies the contract and injects faults. A seed decides everything.
class StressGroup {
 public:
  StressGroup(GroupPlan const& plan, ProtocolRules const& rules);

  /// Runs history `number` of this group to its end. @throws HistoryFailure, or an error of the library.
  void run_history(std::uint64_t number);
  [[nodiscard]] Tally tally();

 private:
  void run_scripts(std::vector<std::unique_ptr<RankScript>>& scripts, Random& random);

  GroupPlan plan_;
  std::uint64_t num_histories_ = 0, num_steps_ = 0;
  std::vector<LateEndpoint*> wires_;            ///< (num_ranks) owned by the groups.
  std::vector<std::unique_ptr<Group>> groups_;  ///< (num_ranks)
};

}  // namespace headway::comm::stress
