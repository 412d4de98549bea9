// SPDX-License-Identifier: Apache-2.0

// Scheduler of the stress: it interleaves the ranks of one group, and the wire (the delayed puts of all LateEndpoints),
// in one thread.
//
// Idea: ranks start and test operations and never wait, so each rank is a state machine (RankScript). In each step the
// scheduler picks a rank, which takes one step, or the wire, which lands one put. A list of turns gives the speeds:
// rank r occurs in it 0 to 3 times, the wire 0 to 2n times. The list is drawn anew in one of 128 steps on average.
//
// Example: two ranks, turns {0, 0, 0, wire}. Rank 0 runs ahead until its bound stops it, rank 1 stands still, and one
// step in four lands a put on average. The next list may let rank 1 catch up, or stop the wire.
//
// Invariants: equal seeds give equal histories. A list is never empty. A history that takes more than kMaxSteps steps
// has hung, since each rank gets turns again and again.
// Complexity: O(ranks) per step besides the rank's own work; a history takes a few thousand steps.

#include "stress_group.hpp"

#include "group/group_impl.hpp"
#include "history_failure.hpp"
#include "transport/checked/endpoint.hpp"
#include "transport/inproc/endpoint.hpp"

#include <algorithm>
#include <utility>

namespace headway::comm::stress {

namespace {

/// Steps after which a history counts as hanging. A history takes a few thousand.
constexpr std::uint64_t kMaxSteps = 1'000'000;

/// Draws turns: each rank occurs in proportion to its speed. Number `num_ranks` stands for the wire.
std::vector<std::size_t> draw_turns(std::size_t num_ranks, Random& random) {
  std::vector<std::size_t> turns;
  while (turns.empty()) {
    for (std::size_t rank = 0; rank < num_ranks; ++rank) turns.insert(turns.end(), random.below(4), rank);
    turns.insert(turns.end(), random.below(2 * num_ranks + 1), num_ranks);
  }
  return turns;
}

}  // namespace

void Tally::add(GroupStats const& stats) {
  exchanges += stats.operations;
  queued += stats.queued;
  lag_lost += stats.lag_lost;
  revoked += stats.rts_revoked;
  for (auto const& peer : stats.peers) {
    repeated += peer.repeated_fragments;
    messages += peer.messages_received;
  }
  for (std::size_t lag = 1; lag < stats.lag_histogram.size(); ++lag) {
    if (stats.lag_histogram[lag] == 0) continue;
    lagged += stats.lag_histogram[lag];
    most_lag = std::max<std::uint64_t>(most_lag, lag);
  }
}

Tally& Tally::operator+=(Tally const& other) {
  histories += other.histories;
  steps += other.steps;
  exchanges += other.exchanges;
  queued += other.queued;
  lag_lost += other.lag_lost;
  revoked += other.revoked;
  repeated += other.repeated;
  messages += other.messages;
  lagged += other.lagged;
  most_lag = std::max(most_lag, other.most_lag);
  return *this;
}

StressGroup::StressGroup(GroupPlan const& plan, ProtocolRules const& rules) : plan_(plan) {
  GroupOptions options;
  options.transport = Transport::kInproc;
  options.max_lag = options.max_lag_limit = plan.lag;
  options.slot_bytes = plan.slot_bytes;
  options.message_slot_bytes = plan.message_slot_bytes;
  options.min_get_bytes = plan.min_get_bytes;
  options.get_footprint = 0;  // Reads blocks from min_get_bytes on, however small the exchange is.
  options.rts_patience = {};  // Revokes an RTS (ready to send) at once, so that sender and receiver compete for it.
  options.num_channels = plan.num_channels;
  ReceiveLayout const layout = ReceiveLayout::of(plan.num_ranks, options, rules);
  auto inproc = make_inproc_endpoints(
      plan.num_ranks, layout.total_bytes(),
      {.can_get = plan.can_get, .can_put_to_window = plan.can_put_to_window, .piece_bytes = plan.piece_bytes});
  for (auto& endpoint : inproc) {
    auto late = std::make_unique<LateEndpoint>(std::move(endpoint), plan.credit);
    wires_.push_back(late.get());
    auto checked = std::make_unique<CheckedEndpoint>(std::move(late), plan.fault_seed);
    // No progress thread: only the scheduler makes a rank progress, so a seed replays exactly.
    groups_.push_back(
        std::make_unique<GroupImpl>(std::move(checked), options, layout, nullptr, ConnectionInfo(), rules));
  }
}

void StressGroup::run_history(std::uint64_t number) {
  HistoryPlan const history{.seed = hash_of(plan_.seed, 8, number), .group = &plan_};
  std::vector<std::unique_ptr<RankScript>> scripts;
  for (auto& group : groups_) scripts.push_back(std::make_unique<RankScript>(*group, history));
  Random random(hash_of(history.seed, 9));
  run_scripts(scripts, random);
  ++num_histories_;
}

/// Lets ranks and the wire take turns at random. Speeds change from time to time. A rank, or the wire, may stand still
/// while others go on.
void StressGroup::run_scripts(std::vector<std::unique_ptr<RankScript>>& scripts, Random& random) {
  auto const is_finished = [](auto const& script) { return script->finished(); };
  std::vector<std::size_t> turns;
  for (std::uint64_t step = 0; step < kMaxSteps; ++step) {
    if (turns.empty() || random.one_in(128)) turns = draw_turns(scripts.size(), random);
    ++num_steps_;
    std::size_t const turn = turns[random.below(turns.size())];
    if (turn == scripts.size()) {
      wires_[random.below(wires_.size())]->land_one(random);
    } else {
      scripts[turn]->step();
      if (scripts[turn]->finished() && std::all_of(scripts.begin(), scripts.end(), is_finished)) return;
    }
  }
  std::string text = "the history does not end:";
  for (auto const& script : scripts) text += " " + script->describe() + ";";
  throw HistoryFailure(text);
}

Tally StressGroup::tally() {
  Tally tally{.histories = num_histories_, .steps = num_steps_};
  for (auto& group : groups_) tally.add(group->monitor().stats());
  return tally;
}

}  // namespace headway::comm::stress
