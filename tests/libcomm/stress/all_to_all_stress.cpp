// SPDX-License-Identifier: Apache-2.0

// Randomised stress of the bounded-lag exchange and of point-to-point messages, and its mutants. A rank may post
// exchange n once its exchanges up to n - 1 - bound are complete; the bound is max_lag.
//
// Idea: the real group code runs on endpoints that deliver late, repeated and reordered. One thread runs all ranks of a
// group as state machines, and a seed decides every step. A run is many short histories, so that rare orders are found
// and a failure has few steps. A history is one random sequence of exchanges and messages of all ranks. A mutant is a
// library with one rule of the proof removed. The stress must catch it, which shows that the histories reach the orders
// that the rule guards against.
//
// Example: a receiver has a ring of slots for each sender; block n goes to slot n modulo their number. Mutant
// shallow_ring with bound 1 has 3 slots, one too few. A starts 0 and 1, B starts 0, A completes 0 and starts 2, B
// starts 1. A completes 1 and may start 3, which lands in slot 0 over block 0 that B has not copied out. B then finds
// wrong bytes, and the program prints the seed of the group and the number of the history.
//
// Invariants: received bytes and guard bytes are right, completion is in order within a channel, a source is not read
// after it was released, and every history ends within 10^6 steps. Seeds alone decide the outcome: no progress thread,
// no clock in a decision, one thread per group. A mutant counts as caught only if the same histories pass without it.
// Complexity: a history takes a few thousand steps; 10^6 histories take some 9 minutes of one core.
// Source: docs/bounded_lag.md (proof); README.md in this folder (how to run and replay).

#include "channel/protocol_rules.hpp"
#include "history_plan.hpp"
#include "mutants.hpp"
#include "random.hpp"
#include "stress_group.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace headway::comm::stress {
namespace {

constexpr char kUsage[] =
    "usage: all_to_all_stress [--histories N] [--seed S] [--ranks R] [--lag K] [--histories-per-group H]\n"
    "                   [--threads T] [--mutant NAME|all] [--replay GROUP_SEED]\n"
    "Runs N random histories (default 1000000) of 2 to 4 ranks and bound 0 to 3, unless R and K fix them.\n"
    "With --mutant, plants that fault and succeeds if it is found. --replay repeats one group of a failed run;\n"
    "give the other options as they were.\n";

/// Options of the command line.
struct Arguments {
  std::uint64_t histories = 1'000'000;
  std::uint64_t seed = 1;
  std::uint64_t histories_per_group = 64;
  unsigned threads = 1;
  PlanChoice choice;
  std::string mutant;                   ///< Name of the planted fault; "": none, "all": each in turn.
  std::optional<std::uint64_t> replay;  ///< Seed of a single group to run.
};

/// A failed history.
struct Finding {
  std::uint64_t group_seed = 0;
  std::uint64_t history = 0;  ///< Index within the group.
  std::string what;
};

/// Parses a number. @throws std::invalid_argument naming the option.
std::uint64_t parse_number(std::string_view option, std::string_view text, std::uint64_t least, std::uint64_t most) {
  int const base = text.starts_with("0x") ? 16 : 10;
  if (base == 16) text.remove_prefix(2);
  std::uint64_t value = 0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    throw std::invalid_argument(std::string(option) + " must be a number from " + std::to_string(least) + " to " +
                                std::to_string(most) + ", not '" + std::string(text) + "'");
  }
  return value;
}

Arguments parse_arguments(std::vector<std::string_view> const& words) {
  Arguments arguments;
  for (std::size_t i = 0; i < words.size(); i += 2) {
    auto const option = words[i];
    if (i + 1 == words.size()) throw std::invalid_argument(std::string(option) + " needs a value, or is unknown");
    auto const number = [&](std::uint64_t least, std::uint64_t most) {
      return parse_number(option, words[i + 1], least, most);
    };
    if (option == "--histories")
      arguments.histories = number(1, 1'000'000'000'000);
    else if (option == "--seed")
      arguments.seed = number(0, UINT64_MAX);
    else if (option == "--ranks")
      arguments.choice.num_ranks = static_cast<int>(number(1, 8));
    else if (option == "--lag")
      arguments.choice.lag = static_cast<int>(number(0, 16));
    else if (option == "--histories-per-group")
      arguments.histories_per_group = number(1, 1'000'000);
    else if (option == "--threads")
      arguments.threads = static_cast<unsigned>(number(1, 256));
    else if (option == "--mutant")
      arguments.mutant = words[i + 1];
    else if (option == "--replay")
      arguments.replay = number(0, UINT64_MAX);
    else
      throw std::invalid_argument("unknown option " + std::string(option));
  }
  return arguments;
}

std::string describe(GroupPlan const& plan) {
  return std::to_string(plan.num_ranks) + " ranks, bound " + std::to_string(plan.lag) + ", " +
         std::to_string(plan.num_channels) + " channels, slots of " + std::to_string(plan.slot_bytes) + " bytes, " +
         (plan.can_get             ? "get"
          : plan.can_put_to_window ? "window"
                                   : "fragments");
}

/// Runs `count` histories of one group. @returns the first failure, or none.
std::optional<Finding> run_group(std::uint64_t group_seed, std::uint64_t count, Arguments const& arguments,
                                 Tally& tally) {
  std::uint64_t history = 0;
  try {
    StressGroup group(draw_group_plan(group_seed, arguments.choice), rules_of(arguments.mutant));
    for (; history < count; ++history) group.run_history(history);
    tally += group.tally();
    return std::nullopt;
  } catch (std::exception const& error) {
    return Finding{.group_seed = group_seed, .history = history, .what = error.what()};
  }
}

/// State that the threads of a run share. Each thread takes the next group; the result does not depend on which one.
class Run {
 public:
  explicit Run(Arguments const& arguments) : arguments_(arguments) {}

  void work() {
    while (auto const group = next_group()) {
      Tally tally;
      auto finding = run_group(group->seed, group->num_histories, arguments_, tally);
      report(tally, std::move(finding));
    }
  }
  [[nodiscard]] Tally const& tally() const { return tally_; }
  [[nodiscard]] std::optional<Finding> const& finding() const { return finding_; }

 private:
  /// One group and its share of the run.
  struct GroupOfHistories {
    std::uint64_t seed, num_histories;
  };

  std::optional<GroupOfHistories> next_group() {
    std::lock_guard const lock(mutex_);
    if (finding_ || num_taken_ == arguments_.histories) return std::nullopt;
    std::uint64_t const count = std::min(arguments_.histories - num_taken_, arguments_.histories_per_group);
    num_taken_ += count;
    return GroupOfHistories{hash_of(arguments_.seed, num_groups_++), count};
  }

  /// Adds the counters of a group, and prints progress in tenths of a long run.
  void report(Tally const& tally, std::optional<Finding> finding) {
    std::lock_guard const lock(mutex_);
    auto const tenths = [&] { return 10 * tally_.histories / arguments_.histories; };
    auto const tenths_before = tenths();
    tally_ += tally;
    if (!finding_) finding_ = std::move(finding);
    if (tenths() == tenths_before || arguments_.histories < 100'000) return;
    std::printf("%llu of %llu histories\n", static_cast<unsigned long long>(tally_.histories),
                static_cast<unsigned long long>(arguments_.histories));
    std::fflush(stdout);
  }

  Arguments const& arguments_;
  std::mutex mutex_;  ///< Guards all members below.
  std::uint64_t num_taken_ = 0, num_groups_ = 0;
  Tally tally_;
  std::optional<Finding> finding_;
};

std::optional<Finding> run_all(Arguments const& arguments, Tally& tally) {
  if (arguments.replay) return run_group(*arguments.replay, arguments.histories_per_group, arguments, tally);
  Run run(arguments);
  {
    std::vector<std::jthread> threads;
    for (unsigned i = 1; i < arguments.threads; ++i) threads.emplace_back([&run] { run.work(); });
    run.work();
  }
  tally += run.tally();
  return run.finding();
}

void print(Finding const& finding, Arguments const& arguments) {
  std::printf(
      "  history %llu of group 0x%llx (%s):\n  %s\n  replay: all_to_all_stress --replay 0x%llx --histories-per-group "
      "%llu",
      static_cast<unsigned long long>(finding.history), static_cast<unsigned long long>(finding.group_seed),
      describe(draw_group_plan(finding.group_seed, arguments.choice)).c_str(), finding.what.c_str(),
      static_cast<unsigned long long>(finding.group_seed),
      static_cast<unsigned long long>(arguments.histories_per_group));
  if (arguments.choice.num_ranks >= 0) std::printf(" --ranks %d", arguments.choice.num_ranks);
  if (arguments.choice.lag >= 0) std::printf(" --lag %d", arguments.choice.lag);
  if (!arguments.mutant.empty()) std::printf(" --mutant %s", arguments.mutant.c_str());
  std::printf("\n");
}

/// Runs the same histories without the mutant: a mutant is caught only if they pass. @throws std::runtime_error if not.
void check_without_mutant(Arguments arguments, Finding const& finding) {
  arguments.mutant.clear();
  Tally tally;
  if (auto const other = run_group(finding.group_seed, finding.history + 1, arguments, tally)) {
    print(*other, arguments);
    throw std::runtime_error("this history fails without the mutant too");
  }
}

/// @returns whether the run went as it must: without a failure, or with one if there is a mutant.
bool run_and_report(Arguments const& arguments) {
  auto const started = std::chrono::steady_clock::now();
  Tally tally;
  auto const finding = run_all(arguments, tally);
  double const seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  bool const is_mutant = !arguments.mutant.empty();
  if (finding && is_mutant) check_without_mutant(arguments, *finding);
  char const* const subject = is_mutant ? arguments.mutant.c_str() : "headway::comm";
  std::printf("%s: %s, seed %llu, %llu histories before, %.1f s\n", subject,
              finding ? (is_mutant ? "caught" : "FAILED") : (is_mutant ? "NOT CAUGHT" : "no failure"),
              static_cast<unsigned long long>(arguments.seed), static_cast<unsigned long long>(tally.histories),
              seconds);
  if (finding) print(*finding, arguments);
  if (!is_mutant) {
    std::printf(
        "  %llu steps, %llu exchanges (%llu completed behind later ones, at most %llu; %llu queued at their start; "
        "%llu lost their lag), %llu messages in all, %llu RTS revoked, %llu repeated notifications\n",
        static_cast<unsigned long long>(tally.steps), static_cast<unsigned long long>(tally.exchanges),
        static_cast<unsigned long long>(tally.lagged), static_cast<unsigned long long>(tally.most_lag),
        static_cast<unsigned long long>(tally.queued), static_cast<unsigned long long>(tally.lag_lost),
        static_cast<unsigned long long>(tally.messages), static_cast<unsigned long long>(tally.revoked),
        static_cast<unsigned long long>(tally.repeated));
  }
  return finding.has_value() == is_mutant;
}

int run(std::vector<std::string_view> const& words) {
  Arguments arguments = parse_arguments(words);
  std::vector<std::string> mutants{arguments.mutant};
  if (arguments.mutant == "all") {
    mutants.clear();
    for (auto const name : kMutantNames) mutants.emplace_back(name);
  }
  int num_failed = 0;
  for (auto& mutant : mutants) {
    arguments.mutant = mutant;
    static_cast<void>(rules_of(mutant));  // Throws here. In a history the error would count as a caught mutant.
    if (!run_and_report(arguments)) ++num_failed;
    std::fflush(stdout);
  }
  std::printf("%zu passed, %d failed\n", mutants.size() - static_cast<std::size_t>(num_failed), num_failed);
  return num_failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace headway::comm::stress

int main(int argc, char** argv) {
  std::vector<std::string_view> const words(argv + 1, argv + argc);
  if (words.size() == 1 && words[0] == "--help") {
    std::fputs(headway::comm::stress::kUsage, stdout);
    return 0;
  }
  try {
    return headway::comm::stress::run(words);
  } catch (std::exception const& error) {
    std::fprintf(stderr, "all_to_all_stress: %s\n%s", error.what(), headway::comm::stress::kUsage);
    return 2;
  }
}
