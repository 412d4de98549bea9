// SPDX-License-Identifier: Apache-2.0

// Inner loops of lookups, compiled once for each instruction set: each file of this folder includes this one, and its
// compiler flags decide the width of vectors. Everything here has internal linkage, and no function of the standard
// library is called: the linker could keep the copy of a shared function that only newer processors run. So the hash is
// written once more here. A test compares it with hash_of().

#pragma once

#include "cpu/index/key_kernels.hpp"

#include <cstddef>
#include <cstdint>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace headway::embedding {
namespace {

inline constexpr std::uint64_t kFirstFactor = 0x87c37b91114253d5, kSecondFactor = 0x4cf5ad432745937f;

inline std::uint64_t rotated(std::uint64_t value, int bits) { return (value << bits) | (value >> (64 - bits)); }

inline std::uint64_t mixed(std::uint64_t value) {
  value = (value ^ (value >> 33)) * 0xff51afd7ed558ccd;
  value = (value ^ (value >> 33)) * 0xc4ceb9fe1a85ec53;
  return value ^ (value >> 33);
}

/// Contribution of the table id, the second half of MurmurHash3's 16 bytes.
inline std::uint64_t mixed_table(std::uint32_t table) { return rotated(table * kSecondFactor, 33) * kFirstFactor; }

/// murmur_hash3(id, table).low, where table_mix is mixed_table(table).
inline std::uint64_t hash_low(std::uint64_t id, std::uint64_t table_mix) {
  constexpr std::uint64_t kNumBytes = 16;
  std::uint64_t low = rotated(id * kFirstFactor, 31) * kSecondFactor;
  low = rotated(low, 27) * 5 + 0x52dce729;
  std::uint64_t high = (rotated(table_mix, 31) + low) * 5 + 0x38495ab5;
  low ^= kNumBytes;
  high ^= kNumBytes;
  low += high;
  high += low;
  return mixed(low) + mixed(high);
}

/// KeyKernels::hash.
inline void hash(KeyGroup const& keys, std::uint64_t* __restrict low) {
  auto const* const ids = keys.ids;
  if (auto const* const tables = keys.tables; tables != nullptr) {
    for (std::size_t i = 0; i < keys.size; ++i) low[i] = hash_low(ids[i], mixed_table(tables[i]));
  } else {
    std::uint64_t const table_mix = mixed_table(keys.table);
    for (std::size_t i = 0; i < keys.size; ++i) low[i] = hash_low(ids[i], table_mix);
  }
}

/// Bit masks of a bucket's slots.
struct Slots {
  unsigned holding;  ///< Live slots that hold the key.
  unsigned empty;    ///< Empty slots.
};

inline constexpr std::uint32_t kEmptyWord = static_cast<std::uint32_t>(RowWord::kEmpty),
                               kErasedWord = static_cast<std::uint32_t>(RowWord::kErased);
static_assert(WideBucket::kNumSlots == 4 && offsetof(WideBucket, ids) == 0 && offsetof(WideBucket, tables) == 32 &&
              offsetof(WideBucket, words) == 48);

#if defined(__AVX2__)

inline Slots slots_of(WideBucket const* bucket, std::uint64_t id, std::uint32_t table) {
  auto const* const halves = reinterpret_cast<__m256i const*>(bucket);
  auto const* const quarters = reinterpret_cast<__m128i const*>(bucket);
  auto const bits_of = [](__m128i lanes) { return static_cast<unsigned>(_mm_movemask_ps(_mm_castsi128_ps(lanes))); };
  // A WideBucket is four 16-byte quarters: two of ids, one of tables, one of words (see the assertion above).
  __m128i const words = _mm_load_si128(quarters + 3);
  __m256i const has_id = _mm256_cmpeq_epi64(_mm256_load_si256(halves), _mm256_set1_epi64x(static_cast<long long>(id)));
  __m128i const has_table = _mm_cmpeq_epi32(_mm_load_si128(quarters + 2), _mm_set1_epi32(static_cast<int>(table)));
  __m128i const is_empty = _mm_cmpeq_epi32(words, _mm_set1_epi32(static_cast<int>(kEmptyWord)));
  __m128i const is_erased = _mm_cmpeq_epi32(words, _mm_set1_epi32(static_cast<int>(kErasedWord)));
  auto const ids = static_cast<unsigned>(_mm256_movemask_pd(_mm256_castsi256_pd(has_id)));
  return {.holding = ids & bits_of(_mm_andnot_si128(_mm_or_si128(is_empty, is_erased), has_table)),
          .empty = bits_of(is_empty)};
}

#else

inline Slots slots_of(WideBucket const* bucket, std::uint64_t id, std::uint32_t table) {
  auto const* const ids = reinterpret_cast<std::uint64_t const*>(bucket);
  auto const* const tables = reinterpret_cast<std::uint32_t const*>(ids + 4);
  auto const* const words = tables + 4;
  Slots slots{.holding = 0, .empty = 0};
  for (unsigned slot = 0; slot < 4; ++slot) {
    bool const is_live = (words[slot] != kEmptyWord) & (words[slot] != kErasedWord);
    bool const is_held = (ids[slot] == id) & (tables[slot] == table) & is_live;
    slots.holding |= static_cast<unsigned>(is_held) << slot;
    slots.empty |= static_cast<unsigned>(words[slot] == kEmptyWord) << slot;
  }
  return slots;
}

#endif

/// Word of the key in this bucket; kEmpty if the key is absent; kErased if the probe has to go on.
inline RowWord look(WideBucket const* bucket, std::uint64_t id, std::uint32_t table) {
  auto const slots = slots_of(bucket, id, table);
  auto const* const words = reinterpret_cast<RowWord const*>(bucket) + 12;
  if (slots.holding != 0) return words[__builtin_ctz(slots.holding)];
  return slots.empty != 0 ? RowWord::kEmpty : RowWord::kErased;
}

/// First bucket of the key whose hash has the lower half `low`.
inline WideBucket const* first_bucket(StripesView const& view, std::uint64_t low) {
  constexpr int kBits = StripesView::kStripeBits;
  auto const& directory = view.directories[view.stripe_of_cell[low >> (64 - kBits)]];
  auto const& entry = directory.entries[low << kBits >> 1 >> directory.shift];
  return entry.buckets + (low & entry.mask);
}

/// KeyKernels::look_and_locate. Alternates between looking up a key and prefetching for another one: the processor
/// compares while it waits for a free fill buffer.
inline void look_and_locate(KeyGroup const& keys, RowWord* words, StripesView const& stripes,
                            std::uint64_t const* next_low, std::size_t num_next, WideBucket const** buckets) {
  // Both groups have the same size except at the end of the batch: the common part alternates, the rest does not.
  std::size_t const num_both = keys.size < num_next ? keys.size : num_next;
  auto const table_of = [&](std::size_t i) { return keys.tables == nullptr ? keys.table : keys.tables[i]; };
  auto const locate = [&](std::size_t i) {
    buckets[i] = first_bucket(stripes, next_low[i]);
    __builtin_prefetch(buckets[i], 0, 2);
  };
  for (std::size_t i = 0; i < num_both; ++i) {
    words[i] = look(buckets[i], keys.ids[i], table_of(i));
    locate(i);
  }
  for (std::size_t i = num_both; i < keys.size; ++i) words[i] = look(buckets[i], keys.ids[i], table_of(i));
  for (std::size_t i = num_both; i < num_next; ++i) locate(i);
}

constexpr KeyKernels key_kernels_of(char const* instruction_set) {
  return {.instruction_set = instruction_set, .hash = hash, .look_and_locate = look_and_locate};
}

}  // namespace
}  // namespace headway::embedding
