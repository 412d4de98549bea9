#pragma once

#include "headway/comm/status.hpp"

#include <array>
#include <string>
#include <string_view>

namespace headway::comm {

/// Faults that tests plant. Each breaks one rule that the bounded-lag proof or a protocol needs. They exist only in
/// builds with HEADWAY_TEST_MUTANTS; the stress test must catch every one.
enum class Mutant {
  kNone,
  kShallowRing,         ///< The ring has depth 2k + 1.
  kNoTagForEmpty,       ///< An empty block is neither sent nor waited for.
  kCompleteOutOfOrder,  ///< Operations complete in any order, and the bound limits the number of incomplete ones.
  kCountArrivals,       ///< The n-th notification of a source counts for operation n, whatever its tag says.
  kBelieveStaleCount,   ///< Every consumed count is taken for an advance, even a late one.
  kSharedWord,          ///< Fragments share one word, so a later one stands for all earlier ones.
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

/// Mutant of that name; kNone for "". @throws UsageError for an unknown name, or in a build without mutants.
inline Mutant mutant_from(std::string_view name) {
  if (name.empty()) return Mutant::kNone;
  expects(kMutantsAreBuilt, "mutant '" + std::string(name) + "' needs a build with HEADWAY_TEST_MUTANTS");
  for (std::size_t i = 0; i < kMutantNames.size(); ++i) {
    if (kMutantNames[i] == name) return static_cast<Mutant>(i + 1);
  }
  throw UsageError("there is no mutant '" + std::string(name) + "'");
}

/// Is `mutant` planted? Without mutants a compile-time false, so it costs nothing.
constexpr bool is_planted(Mutant planted, Mutant mutant) { return kMutantsAreBuilt && planted == mutant; }

}  // namespace headway::comm
