// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "channel/protocol_rules.hpp"
#include "headway/comm/status.hpp"

#include <array>
#include <string>
#include <string_view>

namespace headway::comm::stress {

/// Names of the planted faults, in the order of enum Mutant (mutant_rules.hpp).
inline constexpr std::array<std::string_view, 7> kMutantNames{
    "shallow_ring",        "no_tag_for_empty", "complete_out_of_order", "count_arrivals",
    "believe_stale_count", "shared_word",      "get_unclaimed"};

/// Rules with the fault of that name; the library's own rules for "".
/// @throws UsageError for an unknown name, or in a build without planted faults.
inline ProtocolRules rules_of(std::string_view mutant) {
  if (mutant.empty()) return ProtocolRules();
#ifdef HEADWAY_PROTOCOL_RULES
  for (std::size_t i = 0; i < kMutantNames.size(); ++i) {
    if (kMutantNames.at(i) == mutant) return ProtocolRules(static_cast<Mutant>(i + 1));
  }
  throw UsageError("there is no mutant '" + std::string(mutant) + "'");
#else
  throw UsageError("mutant '" + std::string(mutant) + "' needs all_to_all_stress_mutants");
#endif
}

}  // namespace headway::comm::stress
