// SPDX-License-Identifier: Apache-2.0

// How keys travel to their owners without a round of their own for sizes.
//
// Idea: a message begins with the number of keys of each merged table (tables of equal options that share storage), so
// the receiver need not know its size. It provides room for as many keys as the largest message between the two ranks
// had so far, rounded up to a power of two, but for at least KeyRoom::kFirst. Both ranks know that number. What does
// not fit follows in a second message between these two ranks alone; this happens only while batches grow.
//
// Example: two merged tables, room for 4 keys (as if kFirst were 4). Rank 0 sends 3 and 2 keys to rank 1.
//   The words 3 2 and two words for each of 4 keys go in the exchange. Rank 1 reads that 5 keys are meant, and receives
//   the last one in a message of 2 words. Next time there is room for 8 keys.
//
// Format: words of 64 bits in the byte order of the host. One for each merged table: its number of keys. Then, table by
//   table, two for each key: the id, and the number of its table in the lower half beside its count in the upper one,
//   which is how often the key occurs in the sender's batch.
// Invariants: room changes when a batch is finished, and all ranks finish batches in one order, so both ranks of a pair
//   use the same numbers. The own message has as much room as it needs.
// Complexity: one exchange; 16 bytes for each key, and 8 for each merged table and rank.

#include "exchange/key_exchange.hpp"
#include "exchange/rank_blocks.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <optional>
#include <utility>

namespace headway::embedding {

namespace {

class CapacityKeyExchange final : public KeyExchange {
 public:
  /// @param number of the batch, which tells its messages from those of other batches
  CapacityKeyExchange(BatchDevice& device, Exchanger& exchanger, KeyRoom& room, std::span<RoutedKeys const> tables,
                      std::uint64_t number)
      : device_(device),
        exchanger_(exchanger),
        room_(room),
        number_(number),
        sent_(sizes_of(tables)),
        sends_(device, message_sizes(static_cast<std::size_t>(exchanger.size()))),
        receives_(device, receive_sizes()),
        received_bytes_(std::make_shared<std::vector<std::size_t>>(sends_.num_ranks())) {
    encode(tables);
    std::vector<std::span<std::byte const>> firsts;
    std::vector<std::span<std::byte>> receives;
    for (std::size_t rank = 0; rank < sends_.num_ranks(); ++rank) {
      Words const message = sends_[rank];
      std::size_t const most = is_own(rank) ? message.size() : num_tables() + kWordsPerKey * room.to_send[rank];
      first_words_.push_back(std::min(message.size(), most));
      firsts.push_back(std::as_bytes(message.first(first_words_.back())));
      receives.push_back(std::as_writable_bytes(receives_[rank]));
    }
    exchange_ = exchanger.start(firsts, receives, memory_of(sends_, receives_), *received_bytes_);
  }

  [[nodiscard]] SentSizes start_keys() override { return sent_; }

  [[nodiscard]] bool is_ready() override {
    if (!rests_) {
      if (!exchange_->is_done()) return false;
      start_rests();
    }
    return std::ranges::all_of(rest_messages_, [](auto const& message) { return message->is_done(); });
  }

  [[nodiscard]] std::vector<ReceivedKeys> finish() override {
    if (!rests_) start_rests();
    for (auto const& message : rest_messages_) message->wait();
    auto& rests = *rests_;
    std::size_t const num_ranks = sends_.num_ranks();
    std::vector<ReceivedKeys> tables;
    for (std::size_t table = 0; table < num_tables(); ++table) {
      std::vector<std::size_t> sizes;
      for (std::size_t rank = 0; rank < num_ranks; ++rank) sizes.push_back(receives_[rank][table]);
      tables.push_back(received_keys(device_, std::move(sizes)));
    }
    decode(rests, tables);
    for (std::size_t rank = 0; rank < num_ranks && room_.grows; ++rank) {
      auto const grow = [&](std::size_t& keys, std::size_t words) {
        keys = std::max(keys, std::bit_ceil((words - num_tables()) / kWordsPerKey));
      };
      grow(room_.to_send[rank], sends_[rank].size());
      grow(room_.to_receive[rank], num_words(receives_[rank]));
    }
    return tables;
  }

 private:
  using Words = std::span<std::uint64_t const>;

  [[nodiscard]] static SentSizes sizes_of(std::span<RoutedKeys const> tables) {
    SentSizes sizes;
    for (auto const& table : tables) sizes.emplace_back(table.counts.span.begin(), table.counts.span.end());
    return sizes;
  }
  [[nodiscard]] std::size_t num_tables() const { return sent_.size(); }
  [[nodiscard]] bool is_own(std::size_t rank) const { return static_cast<int>(rank) == exchanger_.rank(); }

  [[nodiscard]] std::vector<std::size_t> message_sizes(std::size_t num_ranks) const {
    std::vector<std::size_t> sizes(num_ranks, num_tables());
    for (auto const& of_table : sent_) {
      for (std::size_t rank = 0; rank < num_ranks; ++rank) sizes[rank] += kWordsPerKey * of_table[rank];
    }
    return sizes;
  }
  [[nodiscard]] std::vector<std::size_t> receive_sizes() const {
    std::vector<std::size_t> sizes;
    for (auto const keys : room_.to_receive) sizes.push_back(num_tables() + kWordsPerKey * keys);
    auto const own = static_cast<std::size_t>(exchanger_.rank());
    sizes[own] = sends_[own].size();
    return sizes;
  }

  void encode(std::span<RoutedKeys const> tables) {
    std::size_t const num_ranks = sends_.num_ranks();
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      for (auto const& of_table : sent_) sends_.take(rank, 1)[0] = of_table[rank];
    }
    std::vector<EncodePiece> pieces;
    for (std::size_t table = 0; table < num_tables(); ++table) {
      std::size_t first = 0;
      for (std::size_t rank = 0; rank < num_ranks; ++rank) {
        std::size_t const count = sent_[table][rank];
        pieces.push_back({.keys = tables[table].unique.keys().subspan(first, count),
                          .words = sends_.take(rank, kWordsPerKey * count).data()});
        first += count;
      }
    }
    device_.encode(pieces);
  }

  /// Keeps the blocks, and the sizes that an exchange writes, alive while it runs.
  [[nodiscard]] std::shared_ptr<void const> memory_of(RankBlocks<std::uint64_t> const& sent,
                                                      RankBlocks<std::uint64_t> const& received) const {
    return owners_of(sent.all(), received.all(), Block<std::size_t>{*received_bytes_, received_bytes_});
  }
  /// Words that came in the first message of a rank.
  [[nodiscard]] std::size_t num_received(std::size_t rank) const {
    return (*received_bytes_)[rank] / sizeof(std::uint64_t);
  }
  /// Number of words of a whole message, from its first words.
  [[nodiscard]] std::size_t num_words(Words message) const {
    std::size_t words = num_tables();
    for (auto const count : message.first(num_tables())) words += kWordsPerKey * count;
    return words;
  }

  /// Waits for the first messages, then starts to send what did not fit, and to receive what did not fit of others.
  void start_rests() {
    exchange_->wait();
    std::vector<std::size_t> sizes;
    for (std::size_t rank = 0; rank < receives_.num_ranks(); ++rank) {
      sizes.push_back(num_words(receives_[rank]) - num_received(rank));
    }
    auto& rests = rests_.emplace(device_, sizes);
    for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
      auto const peer = static_cast<int>(rank);
      Words const rest = Words(sends_[rank]).subspan(first_words_[rank]);
      if (!rest.empty()) {
        rest_messages_.push_back(exchanger_.send(std::as_bytes(rest), peer, number_, memory_of(sends_, rests)));
      }
      if (sizes[rank] == 0) continue;
      rest_messages_.push_back(
          exchanger_.receive(std::as_writable_bytes(rests[rank]), peer, number_, memory_of(sends_, rests)));
    }
  }

  void decode(RankBlocks<std::uint64_t>& rests, std::span<ReceivedKeys const> tables) {
    std::size_t const num_ranks = sends_.num_ranks();
    for (std::size_t rank = 0; rank < num_ranks; ++rank) static_cast<void>(receives_.take(rank, num_tables()));
    std::vector<std::size_t> left;  // Words of each first message, which may be shorter than the room for it.
    for (std::size_t rank = 0; rank < num_ranks; ++rank) left.push_back(num_received(rank) - num_tables());
    std::vector<DecodePiece> pieces;
    for (auto const& table : tables) {
      std::size_t key = 0;
      for (std::size_t rank = 0; rank < num_ranks; ++rank) {
        std::size_t const words = kWordsPerKey * table.sizes[rank];
        // The rest begins between two keys: the room is a number of whole keys.
        auto const first = receives_.take(rank, std::min(words, left[rank]));
        left[rank] -= first.size();
        auto const rest = rests.take(rank, words - first.size());
        for (Words const part : {Words(first), Words(rest)}) {
          if (part.empty()) continue;
          pieces.push_back({.words = part.data(),
                            .num_keys = part.size() / kWordsPerKey,
                            .ids = table.ids.data() + key,
                            .tables = table.tables.data() + key,
                            .counts = table.counts.data() + key});
          key += part.size() / kWordsPerKey;
        }
      }
    }
    device_.decode(pieces);
  }

  BatchDevice& device_;
  Exchanger& exchanger_;
  KeyRoom& room_;
  std::uint64_t number_;
  SentSizes sent_;
  RankBlocks<std::uint64_t> sends_, receives_;
  std::shared_ptr<std::vector<std::size_t>> received_bytes_;
  std::vector<std::size_t> first_words_;  ///< (ranks) Words of each message that go in the exchange.
  std::unique_ptr<Exchanger::Exchange> exchange_;
  std::optional<RankBlocks<std::uint64_t>> rests_;  ///< (ranks) Set by start_rests().
  std::vector<std::unique_ptr<Exchanger::Exchange>> rest_messages_;
};

}  // namespace

std::unique_ptr<KeyExchange> make_capacity_key_exchange(BatchDevice& device, Exchanger& exchanger, KeyRoom& room,
                                                        std::span<RoutedKeys const> tables, std::uint64_t number) {
  return std::make_unique<CapacityKeyExchange>(device, exchanger, room, tables, number);
}

}  // namespace headway::embedding
