// SPDX-License-Identifier: Apache-2.0

// Slots and buckets of the key index, shared by the CPU and the GPU.
//
// A slot maps a key (id, table) to a 32-bit word. The word alone says what the slot is: empty, erased, a row number,
// or the lookups so far of a key that has no row yet. So one compare-and-swap of 4 bytes changes the state of a slot.
//
//  word         meaning
//  0            empty; a probe ends at a bucket with such a slot
//  1 to 2^31-1  number of the row (RowId)
//  2^31 + n     pending: looked up n times, n at most 2^30 - 1
//  2^32 - 2     claimed for a key (kClaimed, GPU only, between two kernels)
//  2^32 - 1     erased: free for another key, but probes go on
//
// A bucket is one cache line, so a lookup that ends in the first bucket costs one cache miss. Ids, tables and words
// lie in arrays of their own within the line, so that one vector instruction compares all slots.

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
/// number. Only tests and a benchmark use it so far.
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

/// Grouped probing (MTGRBoost, equation 5), in units of buckets. Each key has its own step. The step is odd, so a probe
/// visits all 2^n buckets (theorem 1).
struct OddStepProbe {
  static constexpr std::size_t step(Hash hash, std::size_t mask) { return (hash.high & mask) | 1; }
};

/// Linear probing: the next bucket, for every key.
struct LinearProbe {
  static constexpr std::size_t step(Hash /*hash*/, std::size_t /*mask*/) { return 1; }
};

}  // namespace headway::embedding
