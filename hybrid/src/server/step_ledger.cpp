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
// Complexity: O(1) for a part or a lookup; O(workers) for a step.
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

StepLedger::StepLedger(Options const& options) : options_(options), num_applied_(options.first_step) {
  base::expects(options.num_workers > 0 && options.num_workers <= kMostWorkers,
                "a generation has 1 to " + std::to_string(kMostWorkers) + " dense workers");
  base::expects(options.staleness <= kMostStaleness,
                "the staleness is at most " + std::to_string(kMostStaleness) + " steps");
  std::vector<bool> const none(options.num_workers);
  steps_.assign(window(), {.has_part = none, .has_lookup = none, .is_settled = none});
}

StepLedger::Step& StepLedger::expect_in_window(char const* what, std::uint64_t step, std::uint32_t worker) {
  base::expects(worker < options_.num_workers,
                name_of(what, step, worker) + ": there are " + std::to_string(options_.num_workers) + " dense workers");
  base::expects(step >= num_applied_,
                name_of(what, step, worker) + ": steps below " + std::to_string(num_applied_) + " have been applied");
  base::expects(step - num_applied_ < window(), name_of(what, step, worker) + ": only steps below " +
                                                    std::to_string(num_applied_ + window()) + " can have begun");
  return at(step);
}

void StepLedger::expect_part(std::uint64_t step, std::uint32_t worker) {
  auto const& entry = expect_in_window("part", step, worker);
  base::expects(!entry.has_part[worker], name_of("part", step, worker) + " has come before");
}

void StepLedger::add_part(std::uint64_t step, std::uint32_t worker) {
  expect_part(step, worker);
  auto& entry = at(step);
  entry.has_part[worker] = true;
  ++entry.num_parts;
  settle(entry, worker);
}

void StepLedger::add_lookup(std::uint64_t step, std::uint32_t worker) {
  auto& entry = expect_in_window("lookup", step, worker);
  base::expects(step < end_,
                name_of("lookup", step, worker) + ": the workers ended before step " + std::to_string(end_));
  base::expects(!entry.has_lookup[worker], name_of("lookup", step, worker) + " has come before");
  base::expects(!entry.has_part[worker], name_of("lookup", step, worker) + ": the part has come, or is void");
  entry.has_lookup[worker] = true;
}

void StepLedger::count_answer(std::uint64_t step, std::uint32_t worker) { settle(at(step), worker); }

void StepLedger::settle(Step& entry, std::uint32_t worker) {
  if (entry.is_settled[worker]) return;
  entry.is_settled[worker] = true;
  ++entry.num_settled;
}

bool StepLedger::may_apply() const {
  if (at(num_applied_).num_parts < options_.num_workers) return false;
  if (!options_.is_exact) return true;
  std::uint64_t const last = num_applied_ + options_.staleness;
  for (std::uint64_t step = num_applied_; step <= last && step < end_; ++step) {
    if (at(step).num_settled < options_.num_workers) return false;
  }
  return true;
}

void StepLedger::finish_step() {
  auto& entry = at(num_applied_);
  for (auto* const each : {&entry.has_part, &entry.has_lookup, &entry.is_settled}) {
    each->assign(options_.num_workers, false);
  }
  entry.num_parts = entry.num_settled = 0;
  ++num_applied_;
}

std::vector<std::uint32_t> StepLedger::missing_workers() const {
  std::vector<std::uint32_t> missing;
  auto const& entry = at(num_applied_);
  for (std::uint32_t worker = 0; worker < options_.num_workers; ++worker) {
    if (!entry.has_part[worker]) missing.push_back(worker);
  }
  return missing;
}

}  // namespace headway::hybrid
