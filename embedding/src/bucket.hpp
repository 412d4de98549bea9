#pragma once

#include "headway/embedding/key.hpp"

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>

namespace headway::embedding {

/// What a slot of the key structure says of its key: where its row is, below 2^31, or how often it was looked up so
/// far.
enum class RowWord : std::uint32_t {
  kEmpty = 0,            ///< There is no key, and no probe goes on past this bucket.
  kPending = 1U << 31,   ///< And more by the count of lookups: the key waits for a row.
  kErased = 0xffffffff,  ///< There is no key any more, but probes go on.
};
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

/// Slots that are looked at together: one cache line. For keys of any table and id.
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

/// The same for keys of table 0: those of one table, or whose ids carry the table's number.
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
