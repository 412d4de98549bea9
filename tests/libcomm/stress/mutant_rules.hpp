// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "channel/protocol_rules.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>

namespace headway::comm {

/// Planted faults. Each breaks one rule that the proof of bounded lag or a protocol needs.
enum class Mutant {
  kNone,
  kShallowRing,         ///< The ring has depth 2k + 1 instead of 2(k + 1); k is max_lag.
  kNoTagForEmpty,       ///< An empty block sends no tag (notification), and is not waited for.
  kCompleteOutOfOrder,  ///< Operations complete in any order, and max_lag limits the number of incomplete ones.
  kCountArrivals,       ///< The n-th notification of a source counts for operation n, whatever its tag says.
  kBelieveStaleCount,   ///< Every reported count of consumed messages is taken for an advance, even a late one.
  kSharedWord,          ///< Pieces of a payload share one arrival word, so a later one stands for all earlier ones.
  kGetUnclaimed,        ///< A receiver reads the block of a revocable RTS (ready to send) without claiming it.
};

/// Rules with one fault, for the library that all_to_all_stress_mutants tests: each function breaks its rule if its
/// mutant is planted. Used under the group's lock, like the channels that ask it.
class MutantRules {
 public:
  MutantRules() = default;
  explicit MutantRules(Mutant planted) : planted_(planted) {}

  [[nodiscard]] int ring_depth(int max_lag_limit) const {
    return ProvenRules::ring_depth(max_lag_limit) - (planted_ == Mutant::kShallowRing ? 1 : 0);
  }

  [[nodiscard]] bool needs_message(std::span<std::byte const> block) const {
    return planted_ == Mutant::kNoTagForEmpty ? !block.empty() : ProvenRules::needs_message(block);
  }

  [[nodiscard]] bool may_post(int channel, std::uint64_t seq, std::uint64_t num_completed, int max_lag) {
    auto& ahead = completed_ahead_[channel];
    ahead.erase(ahead.begin(), ahead.lower_bound(num_completed));
    return ProvenRules::may_post(channel, seq, num_completed + ahead.size(), max_lag);
  }

  /// Completes operations in any order. Each leaves an empty operation in its place, which the channel completes in
  /// order, so that it goes on counting.
  template <typename Operations, typename IsComplete, typename Completed>
  void complete_ahead(Operations& pending, IsComplete const& is_complete, Completed& completed) {
    if (planted_ != Mutant::kCompleteOutOfOrder) return;
    for (auto& operation : pending) {
      auto& ahead = completed_ahead_[operation->channel];
      if (!is_complete(*operation) || !ahead.insert(operation->seq()).second) continue;
      auto const ended = std::exchange(operation, placeholder_of(*operation));
      ended->finish({});
      completed.push_back(ended);
    }
  }

  [[nodiscard]] std::uint64_t operation_of(Tag tag, int source, std::uint64_t near) {
    if (planted_ != Mutant::kCountArrivals) return ProvenRules::operation_of(tag, source, near);
    return num_arrivals_[{tag.channel, source}]++;
  }

  [[nodiscard]] bool needs_claim(MessageKind kind) const {
    return planted_ != Mutant::kGetUnclaimed && ProvenRules::needs_claim(kind);
  }

  [[nodiscard]] std::uint64_t consumed_count(std::uint16_t low, std::uint64_t known, std::uint64_t num_sent) const {
    if (planted_ != Mutant::kBelieveStaleCount) return ProvenRules::consumed_count(low, known, num_sent);
    return known + static_cast<std::uint16_t>(low - static_cast<std::uint16_t>(known));
  }

  [[nodiscard]] std::uint64_t pieces_announced(int ahead) const {
    auto const piece = ProvenRules::pieces_announced(ahead);
    return planted_ == Mutant::kSharedWord ? piece | (piece - 1) : piece;
  }

 private:
  template <typename Operation>
  static std::shared_ptr<Operation> placeholder_of(Operation const& operation) {
    auto placeholder = std::make_shared<Operation>();
    placeholder->reset(operation.verb(), operation.seq(), std::chrono::hours(1));
    placeholder->sends = operation.sends;
    placeholder->receives = operation.receives;
    placeholder->data_type = operation.data_type;
    placeholder->channel = operation.channel;
    placeholder->slot = operation.slot;
    placeholder->next_to_post = operation.next_to_post;
    placeholder->has_large_blocks = operation.has_large_blocks;
    return placeholder;
  }

  Mutant planted_ = Mutant::kNone;
  std::map<int, std::set<std::uint64_t>> completed_ahead_;              ///< By channel: numbers of operations.
  std::map<std::pair<std::uint8_t, int>, std::uint64_t> num_arrivals_;  ///< By channel and source.
};

/// The library of all_to_all_stress_mutants is built with this type instead of ProvenRules.
using ProtocolRules = MutantRules;

}  // namespace headway::comm
