#pragma once

#include "headway/embedding/key.hpp"

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>

namespace headway::embedding {

/// State of a slot of the key index: the number of the key's row (1 to 2^31 - 1), or the lookups so far of a key that
/// waits for a row.
enum class RowWord : std::uint32_t {
  kEmpty = 0,            ///< No key. A probe ends at a bucket with such a slot.
  kPending = 1U << 31,   ///< Plus the number of lookups: the key waits for a row.
  kErased = 0xffffffff,  ///< Tombstone: no key, but probes go on past it.
};
/// Counts of pending keys saturate here. The largest pending word is 0xbfffffff, so it never equals kErased.
inline constexpr std::uint32_t kMostPendingCount = 0x3fffffff;

[[nodiscard]] constexpr bool is_live(RowWord word) { return word != RowWord::kEmpty && word != RowWord::kErased; }
[[nodiscard]] constexpr bool is_row(RowWord word) { return word != RowWord::kEmpty && word < RowWord::kPending; }
[[nodiscard]] constexpr bool is_pending(RowWord word) { return word >= RowWord::kPending && word != RowWord::kErased; }

[[nodiscard]] constexpr std::uint32_t pending_count_of(RowWord word) {
  return static_cast<std::uint32_t>(word) - static_cast<std::uint32_t>(RowWord::kPending);
}
[[nodiscard]] constexpr RowWord pending_word(std::uint32_t count) {
  std::uint32_t const most = kMostPendingCount;
  return RowWord{static_cast<std::uint32_t>(RowWord::kPending) + (count < most ? count : most)};
}

/// Four slots in one cache line, compared together. Holds keys of any table and id.
struct alignas(64) WideBucket {
  static constexpr std::size_t kNumSlots = 4;

  std::array<std::uint64_t, kNumSlots> ids;
  std::array<std::uint32_t, kNumSlots> tables;
  std::array<RowWord, kNumSlots> words;

  [[nodiscard]] constexpr bool holds(std::size_t slot, Key key) const {
    return ids[slot] == key.id && tables[slot] == key.table;
  }
  [[nodiscard]] constexpr Key key(std::size_t slot) const { return {.id = ids[slot], .table = tables[slot]}; }
  constexpr void set_key(std::size_t slot, Key key) {
    ids[slot] = key.id;
    tables[slot] = key.table;
  }
};
static_assert(sizeof(WideBucket) == 64);

/// Five slots in one cache line, for keys of table 0: the index of a single table, or ids that contain the table
/// number. Tables do not use it yet.
struct alignas(64) PackedBucket {
  static constexpr std::size_t kNumSlots = 5;

  std::array<std::uint64_t, kNumSlots> ids;
  std::array<RowWord, kNumSlots> words;

  [[nodiscard]] constexpr bool holds(std::size_t slot, Key key) const { return ids[slot] == key.id; }
  [[nodiscard]] constexpr Key key(std::size_t slot) const { return {.id = ids[slot]}; }
  constexpr void set_key(std::size_t slot, Key key) {
    assert(key.table == 0 && "a packed key has no table");
    ids[slot] = key.id;
  }
};
static_assert(sizeof(PackedBucket) == 64);

}  // namespace headway::embedding
