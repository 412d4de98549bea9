#pragma once

#include "headway/embedding/key.hpp"

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>

namespace headway::embedding {

/// What a slot of the key structure says of its key: where its row is, or anything else but these two.
enum class RowWord : std::uint32_t {
  kEmpty = 0,           ///< There is no key, and no probe goes on past this bucket.
  kErased = 0xffffffff  ///< There is no key any more, but probes go on.
};

[[nodiscard]] constexpr bool is_live(RowWord word) { return word != RowWord::kEmpty && word != RowWord::kErased; }

/// Slots that are looked at together: one cache line. For keys of any table and id.
struct alignas(64) WideBucket {
  static constexpr std::size_t kNumSlots = 4;

  std::array<std::uint64_t, kNumSlots> ids;
  std::array<std::uint32_t, kNumSlots> tables;
  std::array<RowWord, kNumSlots> words;

  [[nodiscard]] bool holds(std::size_t slot, Key key) const { return ids[slot] == key.id && tables[slot] == key.table; }
  [[nodiscard]] Key key(std::size_t slot) const { return {.id = ids[slot], .table = tables[slot]}; }
  void set_key(std::size_t slot, Key key) {
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

  [[nodiscard]] bool holds(std::size_t slot, Key key) const { return ids[slot] == key.id; }
  [[nodiscard]] Key key(std::size_t slot) const { return {.id = ids[slot]}; }
  void set_key(std::size_t slot, Key key) {
    assert(key.table == 0 && "a packed key has no table");
    ids[slot] = key.id;
  }
};
static_assert(sizeof(PackedBucket) == 64);

}  // namespace headway::embedding
