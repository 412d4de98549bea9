#pragma once

#include "headway/comm/status.hpp"

#include <array>
#include <string>
#include <string_view>

namespace headway::comm {

/// Faults that tests plant, each the lack of one rule that the bounded-lag argument needs. They exist only in builds
/// with HEADWAY_TEST_MUTANTS; the stress test must catch every one of them.
enum class Mutant {
  kNone,
  kShallowRing,         ///< A ring of 2 k + 1 slots.
  kNoTagForEmpty,       ///< A block of no bytes is not sent, and not waited for.
  kCompleteOutOfOrder,  ///< Operations complete in any order, and the bound counts those that are outstanding.
  kCountArrivals,       ///< The n-th notification of a source is taken for operation n, whatever it says.
  kBelieveStaleCount,   ///< Every consumed count is taken for an advance, also one that is late.
  kSharedWord,          ///< Fragments share one word, so that a later one stands for the earlier ones.
  kPullUnclaimed,       ///< A receiver reads a revocable offer without claiming it.
};

inline constexpr std::array<std::string_view, 7> kMutantNames{
    "shallow_ring",        "no_tag_for_empty", "complete_out_of_order", "count_arrivals",
    "believe_stale_count", "shared_word",      "pull_unclaimed"};

#ifdef HEADWAY_TEST_MUTANTS
inline constexpr bool kMutantsAreBuilt = true;
#else
inline constexpr bool kMutantsAreBuilt = false;
#endif

/// kNone for "". @throws UsageError for a name that is unknown or not in this build.
inline Mutant mutant_from(std::string_view name) {
  if (name.empty()) return Mutant::kNone;
  expects(kMutantsAreBuilt, "mutant '" + std::string(name) + "' needs a build with HEADWAY_TEST_MUTANTS");
  for (std::size_t i = 0; i < kMutantNames.size(); ++i) {
    if (kMutantNames[i] == name) return static_cast<Mutant>(i + 1);
  }
  throw UsageError("there is no mutant '" + std::string(name) + "'");
}

/// Whether `planted` is `mutant`; known to the compiler, and so free, where mutants are not built.
constexpr bool is_planted(Mutant planted, Mutant mutant) { return kMutantsAreBuilt && planted == mutant; }

}  // namespace headway::comm
