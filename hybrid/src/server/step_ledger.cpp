// SPDX-License-Identifier: Apache-2.0

// The staleness rule of a parameter server.
//
// Idea: the server counts the parts of each step. When all workers' parts of the oldest step are there, their sum is
// applied, and lookups that needed this step are answered.
//
// Example: 2 workers, staleness 1. Steps 0 and 1 may be looked up at once. The lookup of step 2 waits until both parts
// of step 0 were applied. Part (1, 0) may come before part (0, 1); it waits for its step.
//
// Invariants: parts are applied step by step, in order. An answer to a lookup of step t is given only when t -
// staleness steps were applied, so it lacks at most the parts of `staleness` steps. A part counts once.
//
// The window: steps from num_applied on are tracked, 2 * staleness + 2 of them. A worker looks up step t only when its
// own parts up to t - 1 - staleness were taken by all servers, and the dense synchronisation of step t - 1 - staleness
// is over. So every other worker has finished its backward pass of that step, for which it had looked that step up. Its
// parts up to t - 2 - 2 * staleness were taken then. Hence all those steps are complete, and t is below num_applied +
// 2 * staleness + 2. A step beyond the window is a mistake of the peer, and memory stays bounded.
//
// Without a shared clock (Options::shares_clock), each worker has a window of its own, as if it were the only one. So a
// lookup waits for parts of its own worker alone, and a worker that is slow or has ended holds nobody back.
// Complexity: O(1) for a part or a lookup; O(workers of the clock) for a step.
// Source: Persia (KDD 2022) limits batches in flight instead, which bounds no update's age.

#include "headway/hybrid/step_ledger.hpp"

#include "headway/base/status.hpp"

#include <algorithm>

namespace headway::hybrid {

namespace {

std::string name_of(char const* what, std::uint64_t step, std::uint32_t worker) {
  return std::string(what) + " of step " + std::to_string(step) + ", worker " + std::to_string(worker);
}

}  // namespace

StepLedger::StepLedger(Options const& options) : options_(options) {
  base::expects(options.num_workers > 0 && options.num_workers <= kMostWorkers,
                "a generation has 1 to " + std::to_string(kMostWorkers) + " dense workers");
  base::expects(options.staleness <= kMostStaleness,
                "the staleness is at most " + std::to_string(kMostStaleness) + " steps");
  base::expects(options.shares_clock || (!options.is_exact && !options.sums_parts),
                "workers that make steps of their own have no exact order, and their parts are not added");
  clocks_.assign(options.shares_clock ? 1 : options.num_workers, {.num_applied = options.first_step});
  total_applied_ = options.first_step * clocks_.size();
}

StepLedger::Clock const& StepLedger::clock_of(std::uint32_t worker) const {
  if (worker >= options_.num_workers) {
    throw base::UsageError("worker " + std::to_string(worker) + ": there are " + std::to_string(options_.num_workers) +
                           " dense workers");
  }
  return clocks_[clock_index(worker)];
}

std::uint64_t StepLedger::num_applied() const {
  return std::ranges::max_element(clocks_, {}, &Clock::num_applied)->num_applied;
}

void StepLedger::end_at(std::uint64_t step) {
  base::expects(options_.shares_clock, "workers that make steps of their own have no common end");
  end_ = step;
}

StepLedger::Step& StepLedger::expect_in_window(char const* what, std::uint64_t step, std::uint32_t worker) {
  base::expects(worker < options_.num_workers,
                name_of(what, step, worker) + ": there are " + std::to_string(options_.num_workers) + " dense workers");
  auto& clock = clocks_[clock_index(worker)];
  base::expects(step >= clock.num_applied, name_of(what, step, worker) + ": steps below " +
                                               std::to_string(clock.num_applied) + " have been applied");
  base::expects(step - clock.num_applied < window(), name_of(what, step, worker) + ": only steps below " +
                                                         std::to_string(clock.num_applied + window()) +
                                                         " can have begun");
  if (clock.steps.empty()) {
    std::vector<bool> const none(workers_of_clock());
    clock.steps.assign(window(), {.has_part = none, .has_lookup = none, .is_settled = none});
  }
  return clock.at(step);
}

void StepLedger::expect_part(std::uint64_t step, std::uint32_t worker) {
  auto const& entry = expect_in_window("part", step, worker);
  base::expects(!entry.has_part[place_of(worker)], name_of("part", step, worker) + " has come before");
}

void StepLedger::add_part(std::uint64_t step, std::uint32_t worker) {
  expect_part(step, worker);
  auto& entry = at(step, worker);
  entry.has_part[place_of(worker)] = true;
  ++entry.num_parts;
  settle(entry, place_of(worker));
}

void StepLedger::add_lookup(std::uint64_t step, std::uint32_t worker) {
  auto& entry = expect_in_window("lookup", step, worker);
  auto const place = place_of(worker);
  base::expects(step < end_,
                name_of("lookup", step, worker) + ": the workers ended before step " + std::to_string(end_));
  base::expects(!entry.has_lookup[place], name_of("lookup", step, worker) + " has come before");
  base::expects(!entry.has_part[place], name_of("lookup", step, worker) + ": the part has come, or is void");
  entry.has_lookup[place] = true;
}

void StepLedger::count_answer(std::uint64_t step, std::uint32_t worker) { settle(at(step, worker), place_of(worker)); }

void StepLedger::settle(Step& entry, std::uint32_t place) {
  if (entry.is_settled[place]) return;
  entry.is_settled[place] = true;
  ++entry.num_settled;
}

bool StepLedger::may_apply(std::uint32_t worker) const {
  auto const& clock = clock_of(worker);
  if (clock.steps.empty() || clock.at(clock.num_applied).num_parts < workers_of_clock()) return false;
  if (!options_.is_exact) return true;
  std::uint64_t const last = clock.num_applied + options_.staleness;
  for (std::uint64_t step = clock.num_applied; step <= last && step < end_; ++step) {
    if (clock.at(step).num_settled < options_.num_workers) return false;
  }
  return true;
}

std::optional<std::uint32_t> StepLedger::worker_to_apply() const {
  for (std::uint32_t worker = 0; worker < clocks_.size(); ++worker) {  // Worker 0 stands for all who share its clock.
    if (may_apply(worker)) return worker;
  }
  return std::nullopt;
}

void StepLedger::finish_step(std::uint32_t worker) {
  auto& clock = clocks_[clock_index(worker)];
  auto& entry = clock.at(clock.num_applied);
  for (auto* const each : {&entry.has_part, &entry.has_lookup, &entry.is_settled}) {
    each->assign(workers_of_clock(), false);
  }
  entry.num_parts = entry.num_settled = 0;
  ++clock.num_applied;
  ++total_applied_;
}

std::vector<std::uint32_t> StepLedger::missing_workers() const {
  std::vector<std::uint32_t> missing;
  auto const& clock = clocks_.front();
  for (std::uint32_t worker = 0; worker < workers_of_clock(); ++worker) {
    if (clock.steps.empty() || !clock.at(clock.num_applied).has_part[worker]) missing.push_back(worker);
  }
  return missing;
}

}  // namespace headway::hybrid
