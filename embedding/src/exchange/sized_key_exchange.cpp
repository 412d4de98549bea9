// SPDX-License-Identifier: Apache-2.0

// How keys travel to their owners when a receiver has to know sizes before: over NCCL and Gloo, and on devices.
//
// Idea: a first exchange tells each owner how many keys of each merged table (tables of equal options that share
// storage) it gets. On a CUDA device only the device knows these numbers, so both are copied to the host on a stream of
// its own. This is the only time in a lookup that the host waits for the device. Then a second exchange carries the
// keys.
//
// Example: two merged tables, 2 ranks. Rank 0 has 3 and 2 keys for rank 1.
//   It sends the numbers 3 2. Then it sends a block of 10 words: the 3 keys of the first table, and the 2 of the
//   second.
//
// Format: sizes are 64-bit integers, (merged tables) for each rank. A key takes two words (batch_device.hpp).
// Invariants: the sizes of a rank's own keys go through the exchange too, so all ranks make the same calls.
// Complexity: two exchanges; 16 bytes for each key, and 8 for each merged table and rank.

#include "exchange/key_exchange.hpp"
#include "exchange/rank_blocks.hpp"

#include <numeric>
#include <utility>

namespace headway::embedding {

namespace {

class SizedKeyExchange final : public KeyExchange {
 public:
  SizedKeyExchange(BatchDevice& device, Exchanger& exchanger, std::vector<RoutedKeys> tables)
      : device_(device),
        exchanger_(exchanger),
        tables_(std::move(tables)),
        sizes_(device.block<std::int64_t>(2 * num_ranks() * num_tables())) {
    std::vector<std::int64_t const*> columns;
    for (auto const& table : tables_) columns.push_back(table.counts.data());
    device.interleave(columns, num_ranks(), sizes_.data());
    std::vector<std::span<std::byte const>> sends;
    std::vector<std::span<std::byte>> receives;
    for (std::size_t rank = 0; rank < num_ranks(); ++rank) {
      sends.push_back(std::as_bytes(sizes_.span.subspan(rank * num_tables(), num_tables())));
      receives.push_back(
          std::as_writable_bytes(sizes_.span.subspan((num_ranks() + rank) * num_tables(), num_tables())));
    }
    exchange_ = exchanger.start(sends, receives, sizes_.owner);
    if (!device.is_host()) copy_ = device.fetch(sizes_, [&](CudaStream stream) { exchange_->wait_on(stream); });
  }

  [[nodiscard]] SentSizes start_keys() override {
    if (!sent_.empty()) return sent_;
    if (device_.is_host()) exchange_->wait();
    auto const numbers = copy_ == nullptr ? std::span<std::int64_t const>(sizes_.span) : copy_->wait();
    sent_ = by_table(numbers.first(num_ranks() * num_tables()));
    received_ = by_table(numbers.subspan(num_ranks() * num_tables()));
    sends_.emplace(device_, message_sizes(sent_));
    receives_.emplace(device_, message_sizes(received_));
    std::vector<EncodePiece> pieces;
    for (std::size_t table = 0; table < num_tables(); ++table) {
      std::size_t const count = std::accumulate(sent_[table].begin(), sent_[table].end(), std::size_t{0});
      tables_[table].unique.size = count;
      std::size_t first = 0;
      for (std::size_t rank = 0; rank < num_ranks(); ++rank) {
        pieces.push_back({.keys = tables_[table].unique.keys().subspan(first, sent_[table][rank]),
                          .words = sends_->take(rank, kWordsPerKey * sent_[table][rank]).data()});
        first += sent_[table][rank];
      }
    }
    device_.encode(pieces);
    exchange_ = start_exchange(exchanger_, *sends_, *receives_);
    return sent_;
  }

  [[nodiscard]] std::vector<ReceivedKeys> finish() override {
    static_cast<void>(start_keys());
    exchange_->wait();
    std::vector<ReceivedKeys> result;
    std::vector<DecodePiece> pieces;
    for (auto const& sizes : received_) {
      auto const& table = result.emplace_back(received_keys(device_, sizes));
      std::size_t key = 0;
      for (std::size_t rank = 0; rank < num_ranks(); ++rank) {
        pieces.push_back({.words = receives_->take(rank, kWordsPerKey * sizes[rank]).data(),
                          .num_keys = sizes[rank],
                          .ids = table.ids.data() + key,
                          .tables = table.tables.data() + key,
                          .counts = table.counts.data() + key});
        key += sizes[rank];
      }
    }
    device_.decode(pieces);
    return result;
  }

 private:
  [[nodiscard]] std::size_t num_tables() const { return tables_.size(); }
  [[nodiscard]] std::size_t num_ranks() const { return static_cast<std::size_t>(exchanger_.size()); }
  /// (merged tables)(ranks) from (ranks, merged tables).
  [[nodiscard]] SentSizes by_table(std::span<std::int64_t const> numbers) const {
    SentSizes sizes(num_tables());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      sizes[i % num_tables()].push_back(static_cast<std::size_t>(numbers[i]));
    }
    return sizes;
  }
  /// (ranks) Words of the keys of all merged tables.
  [[nodiscard]] std::vector<std::size_t> message_sizes(SentSizes const& sizes) const {
    std::vector<std::size_t> words(num_ranks());
    for (auto const& of_table : sizes) {
      for (std::size_t rank = 0; rank < words.size(); ++rank) words[rank] += kWordsPerKey * of_table[rank];
    }
    return words;
  }

  BatchDevice& device_;
  Exchanger& exchanger_;
  std::vector<RoutedKeys> tables_;
  Block<std::int64_t> sizes_;  ///< (2, ranks, merged tables) Sent and received.
  SentSizes sent_, received_;  ///< Set by start_keys().
  std::optional<RankBlocks<std::uint64_t>> sends_, receives_;
  std::unique_ptr<HostCopy> copy_;
  std::unique_ptr<Exchanger::Exchange> exchange_;
};

}  // namespace

ReceivedKeys received_keys(BatchDevice& device, std::vector<std::size_t> sizes) {
  std::size_t const count = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
  return {.ids = device.block<std::uint64_t>(count),
          .tables = device.block<std::uint32_t>(count),
          .counts = device.block<std::uint32_t>(count),
          .sizes = std::move(sizes)};
}

std::unique_ptr<KeyExchange> make_sized_key_exchange(BatchDevice& device, Exchanger& exchanger,
                                                     std::vector<RoutedKeys> tables) {
  return std::make_unique<SizedKeyExchange>(device, exchanger, std::move(tables));
}

}  // namespace headway::embedding
