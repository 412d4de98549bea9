// SPDX-License-Identifier: Apache-2.0

// How keys travel to their owners without a round of their own for sizes.
//
// Idea: a message begins with the number of keys of each merged table, so the receiver need not know its size. It
// offers room for as many keys as the largest message between the two ranks had so far, rounded up to a power of two.
// Both ranks know that number. What does not fit follows in a second message between these two ranks alone; this
// happens only while batches grow.
//
// Example: two merged tables, room for 4 keys. Rank 0 sends 3 and 2 keys to rank 1.
//   The words 3 2 and two words for each of 4 keys go in the exchange. Rank 1 reads that 5 keys are meant, and receives
//   the last one in a message of 2 words. Next time there is room for 8 keys.
//
// Format: words of 64 bits in the byte order of the host. One for each merged table: its number of keys. Then, table by
//   table, two for each key: the id, and the number of its table in the lower half beside its count in the upper one.
// Invariants: room changes when a batch is finished, and all ranks finish batches in one order, so both ranks of a pair
//   use the same numbers. The own message has as much room as it needs.
// Complexity: one exchange; 16 bytes for each key, and 8 for each merged table and rank.

#include "exchange/key_exchange.hpp"

#include <algorithm>
#include <bit>

namespace headway::embedding {

namespace {

constexpr std::size_t kWordsPerKey = 2;

std::uint64_t word_of(std::uint32_t table, std::uint32_t count) { return table | std::uint64_t{count} << 32; }

}  // namespace

std::vector<std::size_t> KeyExchange::message_sizes(std::span<RoutedKeys const> tables, int num_ranks) {
  std::vector<std::size_t> sizes(static_cast<std::size_t>(num_ranks), tables.size());
  for (auto const& table : tables) {
    for (std::size_t rank = 0; rank < sizes.size(); ++rank) sizes[rank] += kWordsPerKey * table.sizes[rank];
  }
  return sizes;
}

std::vector<std::size_t> KeyExchange::receive_sizes(KeyRoom const& room, std::size_t num_tables, int own_rank,
                                                    std::size_t own_words) {
  std::vector<std::size_t> sizes;
  for (auto const keys : room.to_receive) sizes.push_back(num_tables + kWordsPerKey * keys);
  sizes[static_cast<std::size_t>(own_rank)] = own_words;
  return sizes;
}

KeyExchange::KeyExchange(Exchanger& exchanger, KeyRoom const& room, std::span<RoutedKeys const> tables,
                         std::uint64_t number)
    : exchanger_(exchanger),
      num_tables_(tables.size()),
      number_(number),
      sends_(message_sizes(tables, exchanger.size())),
      receives_(receive_sizes(room, tables.size(), exchanger.rank(),
                              sends_[static_cast<std::size_t>(exchanger.rank())].size())),
      received_bytes_(sends_.num_ranks()) {
  std::size_t const num_ranks = sends_.num_ranks();
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    for (auto const& table : tables) sends_.take(rank, 1)[0] = table.sizes[rank];
  }
  for (auto const& [keys, sizes] : tables) {
    std::size_t i = 0;
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      auto const words = sends_.take(rank, kWordsPerKey * sizes[rank]);
      for (auto word = words.begin(); word != words.end(); ++i) {
        *word++ = keys.ids[i];
        *word++ = word_of(keys[i].table, keys.counts[i]);
      }
    }
  }
  std::vector<std::span<std::byte const>> firsts;
  std::vector<std::span<std::byte>> receives;
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    Words const message = sends_[rank];
    bool const is_own = static_cast<int>(rank) == exchanger.rank();
    std::size_t const most = is_own ? message.size() : num_tables_ + kWordsPerKey * room.to_send[rank];
    first_words_.push_back(std::min(message.size(), most));
    firsts.push_back(std::as_bytes(message.first(first_words_.back())));
    receives.push_back(std::as_writable_bytes(receives_[rank]));
  }
  exchange_ = exchanger.start(firsts, receives, received_bytes_);
}

std::size_t KeyExchange::num_words(Words message) const {
  std::size_t words = num_tables_;
  for (auto const count : message.first(num_tables_)) words += kWordsPerKey * count;
  return words;
}

RankBlocks<std::uint64_t> KeyExchange::exchange_rests() {
  std::vector<std::size_t> sizes;
  for (std::size_t rank = 0; rank < receives_.num_ranks(); ++rank) {
    sizes.push_back(num_words(receives_[rank]) - received_bytes_[rank] / sizeof(std::uint64_t));
  }
  RankBlocks<std::uint64_t> rests(sizes);
  std::vector<std::unique_ptr<Exchanger::Exchange>> messages;
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    auto const peer = static_cast<int>(rank);
    Words const rest = Words(sends_[rank]).subspan(first_words_[rank]);
    if (!rest.empty()) messages.push_back(exchanger_.send(std::as_bytes(rest), peer, number_));
    if (sizes[rank] == 0) continue;
    messages.push_back(exchanger_.receive(std::as_writable_bytes(rests[rank]), peer, number_));
  }
  for (auto const& message : messages) message->wait();
  return rests;
}

std::vector<ReceivedKeys> KeyExchange::finish(KeyRoom& room) {
  exchange_->wait();
  auto rests = exchange_rests();
  std::size_t const num_ranks = sends_.num_ranks();
  for (std::size_t rank = 0; rank < num_ranks; ++rank) static_cast<void>(receives_.take(rank, num_tables_));  // Counts.
  std::vector<ReceivedKeys> tables(num_tables_);
  for (std::size_t table = 0; table < num_tables_; ++table) {
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      tables[table].sizes.push_back(receives_[rank][table]);
      std::size_t const words = kWordsPerKey * tables[table].sizes.back();
      // The rest begins between two keys: the room is a number of whole keys.
      auto const first = receives_.take_up_to(rank, words);
      auto const rest = rests.take(rank, words - first.size());
      for (Words const part : {Words(first), Words(rest)}) {
        for (std::size_t i = 0; i < part.size(); i += kWordsPerKey) {
          tables[table].ids.push_back(part[i]);
          tables[table].tables.push_back(static_cast<std::uint32_t>(part[i + 1]));
          tables[table].counts.push_back(static_cast<std::uint32_t>(part[i + 1] >> 32));
        }
      }
    }
  }
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    auto const grow = [&](std::size_t& keys, std::size_t words) {
      keys = std::max(keys, std::bit_ceil((words - num_tables_) / kWordsPerKey));
    };
    grow(room.to_send[rank], sends_[rank].size());
    grow(room.to_receive[rank], num_words(receives_[rank]));
  }
  return tables;
}

}  // namespace headway::embedding
