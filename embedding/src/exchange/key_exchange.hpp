// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/embedding/batch_device.hpp"
#include "headway/embedding/exchanger.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace headway::embedding {

/// A key takes one word (64 bits) for its id, and one that packs its table and its count.
constexpr std::size_t kWordsPerKey = 2;

/// Room for keys in the messages between this rank and each other one. Both ranks of a pair know the same numbers: they
/// follow from the messages of finished batches, or never change.
struct KeyRoom {
  static constexpr std::size_t kFirst = 1024;  ///< Keys of the first message.

  explicit KeyRoom(std::size_t num_ranks, std::size_t first = kFirst, bool may_grow = true)
      : to_send(num_ranks, first), to_receive(num_ranks, first), grows(may_grow) {}

  std::vector<std::size_t> to_send, to_receive;  ///< (ranks) Keys.
  bool grows;
};

/// Keys of a merged table (tables of equal options that share storage) that go to their owners.
struct RoutedKeys {
  UniqueBlocks unique;         ///< Sorted by owner.
  Block<std::int64_t> counts;  ///< (ranks) Keys for each owner, in the memory of the device.
};

/// Keys of a merged table that came from other ranks.
struct ReceivedKeys {
  Block<std::uint64_t> ids;
  Block<std::uint32_t> tables, counts;
  std::vector<std::size_t> sizes;  ///< (ranks) Keys from each rank.

  [[nodiscard]] Keys keys() const { return {.ids = ids.span, .tables = tables.span, .counts = counts.span}; }
};

/// Keys for each owner, (merged tables)(ranks).
using SentSizes = std::vector<std::vector<std::size_t>>;

/// The keys of one batch on their way to their owners. If it is destroyed, exchanges that were started go on.
class KeyExchange {
 public:
  KeyExchange() = default;
  KeyExchange(KeyExchange const&) = delete;
  KeyExchange& operator=(KeyExchange const&) = delete;
  virtual ~KeyExchange() = default;

  /// Starts to send the keys, unless that has been done. Waits for sizes if they travel first.
  /// @returns the sizes that this rank sends
  [[nodiscard]] virtual SentSizes start_keys() = 0;
  /// Would finish() return without a wait? Starts messages that follow from those that came. Only where no sizes travel
  /// first.
  [[nodiscard]] virtual bool is_ready() { return false; }
  /// Waits for the keys of all ranks.
  /// @returns the received keys of each merged table, sorted by rank
  [[nodiscard]] virtual std::vector<ReceivedKeys> finish() = 0;
};

/// Sends keys without a round for sizes, in host memory; see capacity_key_exchange.cpp. `finish()` lets `room` grow
/// with what came.
/// @param room must outlive the exchange
/// @param number of the batch, the same on all ranks
[[nodiscard]] std::unique_ptr<KeyExchange> make_capacity_key_exchange(BatchDevice& device, Exchanger& exchanger,
                                                                      KeyRoom& room, std::span<RoutedKeys const> tables,
                                                                      std::uint64_t number);

/// Sends sizes first, for exchangers that need them; see sized_key_exchange.cpp.
[[nodiscard]] std::unique_ptr<KeyExchange> make_sized_key_exchange(BatchDevice& device, Exchanger& exchanger,
                                                                   std::vector<RoutedKeys> tables);

/// Memory for the keys of a merged table. @param sizes (ranks)
[[nodiscard]] ReceivedKeys received_keys(BatchDevice& device, std::vector<std::size_t> sizes);

}  // namespace headway::embedding
