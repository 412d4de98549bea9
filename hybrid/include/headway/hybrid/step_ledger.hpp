// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace headway::hybrid {

/// Counts the parts of each step at a server. It says when parts may be applied, and when lookups may be answered.
///
/// Step t is the t-th synchronisation of the dense model. Part (t, r) is the gradient of dense worker r for this server
/// in step t. A void notice says that a part will not come. With staleness s, the answer to a lookup of step t contains
/// every part of all steps up to t - 1 - s. step_ledger.cpp explains the window of steps. Not thread-safe.
///
/// A *clock* counts the steps of its workers. All workers share one, or each has its own (Options::shares_clock).
class StepLedger {
 public:
  struct Options {
    std::uint32_t num_workers = 1;  ///< Dense workers.
    std::uint32_t staleness = 0;    ///< In steps; 0: synchronous training.
    std::uint64_t first_step = 0;   ///< Steps before it are applied.
    /// Apply the parts of step t only when all lookups of steps up to t + staleness have been answered. So every read
    /// is determined.
    bool is_exact = false;
    /// A row makes one optimizer step for the sum of a step's parts. If not, each part makes one of its own: as soon as
    /// it comes, or in exact order with the others, in the order of workers. The ledger itself counts parts either way.
    bool sums_parts = true;
    /// All workers make the same steps. If not, each counts steps of its own and waits for none of the others. Parts
    /// are not added then, and the order is not exact.
    bool shares_clock = true;

    bool operator==(Options const&) const = default;
  };
  static constexpr std::uint32_t kMostStaleness = 1024, kMostWorkers = 4096;

  /// @throws base::UsageError for no worker, more workers or staleness than allowed, or options that contradict each
  ///   other
  explicit StepLedger(Options const& options);

  /// Counts part (step, worker), a gradient or a void notice.
  /// @throws base::UsageError that names the part, if there is no such worker, the part has come before, its step has
  ///   been applied, or the step lies beyond the window
  void add_part(std::uint64_t step, std::uint32_t worker);
  /// @throws base::UsageError if add_part() would
  void expect_part(std::uint64_t step, std::uint32_t worker);
  /// Counts the lookup of a worker's batch of a step. A batch without ids has one, too.
  /// @throws base::UsageError as add_part()
  void add_lookup(std::uint64_t step, std::uint32_t worker);
  /// Counts the answer to a lookup.
  void count_answer(std::uint64_t step, std::uint32_t worker);
  /// There are no lookups from this step on: later ones are errors. Only is_exact needs to know.
  /// @throws base::UsageError if workers share no clock: each ends by itself
  void end_at(std::uint64_t step);

  /// Steps below this one are applied, by the clock that has come furthest.
  [[nodiscard]] std::uint64_t num_applied() const;
  /// Steps below this one are applied, by the worker's clock.
  /// @throws base::UsageError if there is no such worker
  [[nodiscard]] std::uint64_t num_applied(std::uint32_t worker) const { return clock_of(worker).num_applied; }
  /// Steps of all clocks together.
  [[nodiscard]] std::uint64_t total_applied() const { return total_applied_; }
  [[nodiscard]] std::uint64_t num_clocks() const { return clocks_.size(); }
  /// Does the table contain all that the answer to the worker's lookup of this step has to contain?
  [[nodiscard]] bool may_answer(std::uint64_t step, std::uint32_t worker) const {
    return step <= num_applied(worker) + options_.staleness;
  }
  /// Have all parts of step num_applied() of the worker's clock come, and may they be applied?
  [[nodiscard]] bool may_apply(std::uint32_t worker = 0) const;
  /// A worker whose clock has a step that may be applied.
  [[nodiscard]] std::optional<std::uint32_t> worker_to_apply() const;
  /// The parts of step num_applied() of the worker's clock were applied.
  void finish_step(std::uint32_t worker = 0);
  /// Workers whose parts of step num_applied() are missing, if they share a clock.
  [[nodiscard]] std::vector<std::uint32_t> missing_workers() const;
  [[nodiscard]] Options const& options() const { return options_; }

 private:
  struct Step {
    std::vector<bool> has_part, has_lookup, is_settled;  ///< (workers of the clock)
    std::uint32_t num_parts = 0;
    std::uint32_t num_settled = 0;  ///< Workers whose lookup was answered, or whose part came without one.
  };
  struct Clock {
    std::uint64_t num_applied = 0;
    std::vector<Step> steps{};  ///< (window) Step t is at t % window. Empty until the first message.

    [[nodiscard]] Step& at(std::uint64_t step) { return steps[step % steps.size()]; }
    [[nodiscard]] Step const& at(std::uint64_t step) const { return steps[step % steps.size()]; }
  };

  [[nodiscard]] std::uint64_t window() const { return 2 * std::uint64_t{options_.staleness} + 2; }
  [[nodiscard]] std::uint32_t workers_of_clock() const { return options_.shares_clock ? options_.num_workers : 1; }
  [[nodiscard]] std::size_t clock_index(std::uint32_t worker) const { return options_.shares_clock ? 0 : worker; }
  /// Index of the worker among those of its clock.
  [[nodiscard]] std::uint32_t place_of(std::uint32_t worker) const { return options_.shares_clock ? worker : 0; }
  /// @throws base::UsageError if there is no such worker
  [[nodiscard]] Clock const& clock_of(std::uint32_t worker) const;
  static void settle(Step& entry, std::uint32_t place);
  /// @param what for the error: "part" or "lookup"
  Step& expect_in_window(char const* what, std::uint64_t step, std::uint32_t worker);
  [[nodiscard]] Step& at(std::uint64_t step, std::uint32_t worker) { return clocks_[clock_index(worker)].at(step); }

  Options options_;
  std::uint64_t total_applied_ = 0;
  std::uint64_t end_ = ~std::uint64_t{0};
  std::vector<Clock> clocks_;  ///< One, or one for each worker.
};

}  // namespace headway::hybrid
