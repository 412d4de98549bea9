// SPDX-License-Identifier: Apache-2.0

// Interface between lookups (staged_find.hpp) and their inner loops, which exist once per instruction set
// (simd/key_functions.hpp). The loops get plain pointers, since no inline function may be shared across objects that
// were compiled for different instruction sets.

#pragma once

#include "bucket.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace headway::embedding {

template <class Bucket>
struct KeySegment;

/// Directory entry of a KeyIndex: the segment of one prefix of hashes. Lookups read `buckets` and `mask` only.
template <class Bucket>
struct DirectoryEntry {
  Bucket* buckets;
  std::size_t mask;  ///< Number of buckets - 1.
  KeySegment<Bucket>* segment;
};

/// Read-only view of a KeyIndex's directory, valid until the index changes.
template <class Bucket>
struct DirectoryView {
  DirectoryEntry<Bucket> const* entries;
  int shift;  ///< 63 - number of hash bits that choose an entry.
};

/// Consecutive keys of a batch.
struct KeyGroup {
  std::uint64_t const* ids;
  std::uint32_t const* tables;  ///< (size) Table of each key; null: `table` for all.
  std::uint32_t table;
  std::size_t size;
};

/// Locates first buckets: the highest kStripeBits bits of a hash choose a stripe's index, the next ones its segment. A
/// stripe is one of the 64 parts of a table's key index.
struct StripesView {
  static constexpr int kStripeBits = 12;

  std::uint8_t const* stripe_of_cell;            ///< (2^kStripeBits) Stripe for each value of these bits.
  DirectoryView<WideBucket> const* directories;  ///< (stripes)
};

/// Inner loops of a lookup, for a group of keys at a time, compiled for one instruction set.
struct KeyKernels {
  static constexpr std::size_t kGroup = 256;  ///< Most keys of a group.

  char const* instruction_set;
  /// low[i] = hash_of(key i).low
  void (*hash)(KeyGroup const& keys, std::uint64_t* low);
  /// Looks for key i in buckets[i]. words[i] is the key's word, kEmpty if it is absent, or kErased if the probe has to
  /// go on. Then sets buckets[i] to the first bucket of the next group's key i, whose hash is next_low[i], and
  /// prefetches it.
  void (*look_and_locate)(KeyGroup const& keys, RowWord* words, StripesView const& stripes,
                          std::uint64_t const* next_low, std::size_t num_next, WideBucket const** buckets);
};

/// Compiled from one source (simd/key_functions.hpp) with the flags of each instruction set. AVX sets: x86-64 only.
[[nodiscard]] KeyKernels baseline_key_kernels();
[[nodiscard]] KeyKernels avx2_key_kernels();
[[nodiscard]] KeyKernels avx512_key_kernels();

/// Kernels that this processor can run, the fastest last. All give the same results. Lives as long as the process.
[[nodiscard]] std::span<KeyKernels const> usable_key_kernels();

}  // namespace headway::embedding
