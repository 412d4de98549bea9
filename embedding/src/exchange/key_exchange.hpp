// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "exchange/rank_blocks.hpp"
#include "headway/embedding/exchanger.hpp"
#include "headway/embedding/table.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace headway::embedding {

/// Room for keys in the messages between this rank and each other one. Both ranks of a pair know the same numbers: they
/// follow from the messages of finished batches.
struct KeyRoom {
  static constexpr std::size_t kFirst = 1024;  ///< Keys of the first message.

  explicit KeyRoom(std::size_t num_ranks) : to_send(num_ranks, kFirst), to_receive(num_ranks, kFirst) {}

  std::vector<std::size_t> to_send, to_receive;  ///< (ranks) Keys.
};

/// Keys of a merged table that go to their owners.
struct RoutedKeys {
  Keys keys;                           ///< Sorted by owner, with counts.
  std::span<std::size_t const> sizes;  ///< (ranks) Keys for each owner.
};

/// Keys of a merged table that came from other ranks.
struct ReceivedKeys {
  std::vector<std::uint64_t> ids;
  std::vector<std::uint32_t> tables, counts;
  std::vector<std::size_t> sizes;  ///< (ranks) Keys from each rank.

  [[nodiscard]] Keys keys() const { return {.ids = ids, .tables = tables, .counts = counts}; }
};

/// The keys of one batch on their way to their owners. key_exchange.cpp explains the messages.
class KeyExchange {
 public:
  /// Starts to send the keys. Does not wait.
  /// @param tables of each merged table; may be freed afterwards
  /// @param number of the batch, the same on all ranks
  KeyExchange(Exchanger& exchanger, KeyRoom const& room, std::span<RoutedKeys const> tables, std::uint64_t number);

  /// Waits for the keys of all ranks, and lets `room` grow with what came.
  /// @returns the received keys of each merged table, sorted by rank
  [[nodiscard]] std::vector<ReceivedKeys> finish(KeyRoom& room);

 private:
  using Words = std::span<std::uint64_t const>;

  [[nodiscard]] static std::vector<std::size_t> message_sizes(std::span<RoutedKeys const> tables, int num_ranks);
  [[nodiscard]] static std::vector<std::size_t> receive_sizes(KeyRoom const& room, std::size_t num_tables, int own_rank,
                                                              std::size_t own_words);
  /// Number of words of a whole message, from its first words.
  [[nodiscard]] std::size_t num_words(Words message) const;
  /// Sends what did not fit, and waits for what did not fit of others. @returns (ranks) the ends of their messages
  [[nodiscard]] RankBlocks<std::uint64_t> exchange_rests();

  Exchanger& exchanger_;
  std::size_t num_tables_;
  std::uint64_t number_;
  RankBlocks<std::uint64_t> sends_, receives_;
  std::vector<std::size_t> received_bytes_;
  std::vector<std::size_t> first_words_;  ///< (ranks) Words of each message that go in the exchange.
  std::unique_ptr<Exchanger::Exchange>
      exchange_;  ///< Declared after the blocks: it is destroyed before them, and waits.
};

}  // namespace headway::embedding
