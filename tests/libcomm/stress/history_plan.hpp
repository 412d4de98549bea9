// SPDX-License-Identifier: Apache-2.0
#pragma once

// Plans of random histories, drawn from seeds.
//
// Idea: a plan is a pure function of a seed. Ranks do not exchange it: each computes the same sizes, match numbers
// (the tags of MPI) and contents. A group plan holds the settings of one group; a history plan holds the operations of
// one short run on it.
//
// Example: the group with seed g runs history 5 with seed hash_of(g, 8, 5). In this history block (channel 0, index 3,
// sender 1, receiver 0) has the key hash_of(seed, 0, 3, 1, 0). The key gives the block's size and its contents. So rank
// 0 knows which bytes to expect of rank 1 without asking.
//
// Invariants: a quarter of all blocks is empty. Sizes lie around the slot size, so eager and large paths both run.
// Blocks of several fragments occur only without get and without windows. Equal seeds give equal plans on every
// host.
// Complexity: O(1) per block, message or setting; nothing is stored.

#include "headway/comm/endpoint.hpp"
#include "headway/comm/group.hpp"
#include "payload.hpp"
#include "random.hpp"

#include <cstddef>
#include <cstdint>

namespace headway::comm::stress {

/// Settings that all histories of one group share.
struct GroupPlan {
  std::uint64_t seed = 0;
  int num_ranks = 2;
  int lag = 0;  ///< Value of max_lag and max_lag_limit.
  int num_channels = 1;
  std::size_t slot_bytes = 64;                     ///< Size of a slot, the receive buffer of one block of an exchange.
  std::size_t message_slot_bytes = 8 * 1024;       ///< Largest message that does not go by rendezvous.
  bool can_get = true, can_put_to_window = false;  ///< Paths of payloads above a slot; neither: fragments.
  std::size_t piece_bytes = PeerTraits::kNoLimit;  ///< Bytes of such a payload in a window at a time.
  std::size_t min_get_bytes = 0;                   ///< Smallest payload that the receiver reads (get) instead.
  std::size_t credit = 0;                          ///< Puts to one peer that may be in flight.
  std::uint64_t fault_seed = 1;                    ///< Seed of the faults that CheckedEndpoint injects.
  bool has_messages = false;                       ///< Also run point-to-point messages.
};

/// Limits set on the command line; -1 lets the seed choose.
struct PlanChoice {
  int num_ranks = -1;
  int lag = -1;
};

/// Draws the plan of `seed`.
inline GroupPlan draw_group_plan(std::uint64_t seed, PlanChoice const& choice) {
  Random random(hash_of(seed, 1));
  GroupPlan plan{.seed = seed};
  constexpr int kRanksOf[10] = {2, 2, 2, 2, 2, 2, 3, 3, 3, 4};  // Small groups run faster and find nearly everything.
  plan.num_ranks = kRanksOf[random.below(10)];
  plan.lag = static_cast<int>(random.below(4));
  plan.num_channels = static_cast<int>(1 + random.below(2));
  plan.slot_bytes = 64u << random.below(3);
  if (seed % 4 == 1) plan.message_slot_bytes = 64;
  std::uint64_t const path = random.below(4);
  plan.can_get = path < 2;
  plan.can_put_to_window = path == 2;
  if (plan.can_put_to_window && seed % 2 == 0) plan.piece_bytes = 1 + seed % 64;
  plan.min_get_bytes = random.one_in(2) ? 32 : 32 * 1024;
  plan.credit = random.one_in(2) ? 1 + random.below(4) : 1000;
  plan.fault_seed = 1 + random.below(1u << 30);
  plan.has_messages = random.one_in(4);
  if (choice.num_ranks >= 0) plan.num_ranks = choice.num_ranks;
  if (choice.lag >= 0) plan.lag = choice.lag;
  return plan;
}

/// Identifies one block of an exchange or one message.
struct BlockId {
  std::uint64_t history_seed;
  int kind;  ///< Channel of an exchange, or kMessageKind.
  std::uint64_t index;
  int sender, receiver;

  [[nodiscard]] std::uint64_t key() const { return hash_of(history_seed, kind, index, sender, receiver); }
};
inline constexpr int kMessageKind = 100;

/// One short run. Its exchanges and messages are a function of the seed, which all ranks know.
struct HistoryPlan {
  static constexpr std::size_t kLargeBytes = 150'000;  ///< More than two fragments of a transfer.
  static constexpr std::uint64_t kMatchAny = 9;        ///< Match of messages that the receiver takes from any rank.
  static constexpr std::size_t kMatchAnyBytes = 24;
  static constexpr DataType kMatchAnyType = 4;  ///< Sender and receiver must name the same data type.

  std::uint64_t seed;
  GroupPlan const* group;

  [[nodiscard]] std::uint64_t num_exchanges(int channel) const {
    return 12 / static_cast<std::uint64_t>(group->num_channels) + hash_of(seed, 2, channel) % 4;
  }

  [[nodiscard]] std::size_t exchange_bytes(BlockId const& block) const {
    std::uint64_t const draw = hash_of(block.key(), 3);
    std::uint64_t const size = draw >> 8;
    if (draw % 4 == 0) return 0;
    if (draw % 256 == 1 && !group->can_get && !group->can_put_to_window) return 1 + size % kLargeBytes;
    if (draw % 16 == 2) return 1 + size % (4 * group->slot_bytes);
    return size % (group->slot_bytes + 1);
  }

  /// Number of messages from `sender` to `receiver`. It may exceed the slots of the channel, in one direction only.
  [[nodiscard]] std::uint64_t num_messages(int sender, int receiver) const {
    if (!group->has_messages || sender == receiver) return 0;
    std::uint64_t const draw = hash_of(seed, 4, sender, receiver);
    if (draw % 8 == 0) return draw / 8 % 48;
    return draw % 8 == 1 ? draw / 8 % 4 : 0;
  }

  [[nodiscard]] std::uint64_t message_match(BlockId const& message) const {
    std::uint64_t const draw = hash_of(message.key(), 5) % 8;
    return draw == 0 ? kMatchAny : draw % 3;
  }

  [[nodiscard]] DataType message_type(BlockId const& message) const {
    return message_match(message) == kMatchAny ? kMatchAnyType : static_cast<DataType>(message.index % 3);
  }

  [[nodiscard]] std::size_t message_bytes(BlockId const& message) const {
    if (message_match(message) == kMatchAny) return kMatchAnyBytes;
    std::uint64_t const draw = hash_of(message.key(), 6);
    if (draw % 64 == 0) return 8 * 1024 + draw / 64 % 4096;  // Around the size of a slot and above.
    return draw / 64 % 200;
  }
};

}  // namespace headway::comm::stress
