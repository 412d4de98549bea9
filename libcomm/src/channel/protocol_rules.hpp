// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "channel/message_header.hpp"
#include "headway/comm/tag.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace headway::comm {

/// Rules that the proof of bounded lag and the protocols need (docs/bounded_lag.md). Channels call the rule wherever
/// one applies. All functions are static and inline, so they cost no more than the expressions in them. Parameters
/// without a name are for MutantRules.
///
/// ProtocolRules below is the type that a build of the library uses. The stress test builds the library with
/// MutantRules, which break one rule at a time, and must notice every one (tests/libcomm/stress/mutant_rules.hpp).
class ProvenRules {
 public:
  /// Depth of a ring: number of receive slots for one source and channel. With fewer slots, a rank that is max_lag
  /// ahead overwrites a block that was not copied out.
  static constexpr int ring_depth(int max_lag_limit) { return 2 * (max_lag_limit + 1); }

  /// Does a block need a message? An empty one does, too: its tag tells the receiver how far the sender is.
  static constexpr bool needs_message(std::span<std::byte const> /*block*/) { return true; }

  /// May operation `seq` of an all-to-all channel be posted? All operations below `num_completed` are complete.
  static constexpr bool may_post(int /*channel*/, std::uint64_t seq, std::uint64_t num_completed, int max_lag) {
    return seq <= num_completed + static_cast<std::uint64_t>(max_lag);
  }

  /// Completes operations ahead of older ones: none, since operations complete in order.
  template <typename Operations, typename IsComplete, typename Completed>
  static constexpr void complete_ahead(Operations& /*pending*/, IsComplete const& /*is_complete*/,
                                       Completed& /*completed*/) {}

  /// Number of the all-to-all that a tag announces: the one closest to `near` with the tag's low bits.
  static constexpr std::uint64_t operation_of(Tag tag, int /*source*/, std::uint64_t near) {
    return widen(tag.operation, near);
  }

  /// Must the receiver claim a block before it reads it from the sender's memory?
  static constexpr bool needs_claim(MessageKind kind) { return kind == MessageKind::kRevocableRts; }

  /// Count of consumed messages to believe after a report with these low bits. `known`: the count believed so far. A
  /// late or impossible report changes nothing, since it could free a slot that is in use.
  static constexpr std::uint64_t consumed_count(std::uint16_t low, std::uint64_t known, std::uint64_t num_sent) {
    std::uint64_t const count = widen(low, known);
    return count > known && count <= num_sent ? count : known;
  }

  /// Pieces of a large payload that a tag announces: the piece `ahead` positions after the first missing one, and no
  /// other. Bit i stands for the first missing piece + i.
  static constexpr std::uint64_t pieces_announced(int ahead) { return std::uint64_t{1} << ahead; }
};

}  // namespace headway::comm

#ifdef HEADWAY_PROTOCOL_RULES
#include HEADWAY_PROTOCOL_RULES  // A test's header, which defines ProtocolRules.
#else
namespace headway::comm {
using ProtocolRules = ProvenRules;
}  // namespace headway::comm
#endif
