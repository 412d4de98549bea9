// SPDX-License-Identifier: Apache-2.0

// A batch of lookups in stages, so that no lookup waits for memory.
//
// Idea: keys are taken in groups of KeyKernels::kGroup. A group is hashed, and the first bucket of each of its keys is
// prefetched. In turns with these prefetches, the keys of the previous group are compared with their first buckets,
// which have arrived by then. So the processor always has as many cache lines in flight as it can fetch, and computes
// meanwhile. A key whose first bucket is full of other keys is deferred: its next bucket is prefetched and looked into
// one group later. About one key in twenty is deferred; probing to the end at once would wait for its line.
//
// Example: groups A, B, C. Prefetch A. Look into A, prefetch B; key a1 is deferred. Look into a1's second bucket, then
//   into B, and prefetch C; b7 is deferred. Look into the third bucket of a1 and the second of b7, then into C.
//
// Invariants: the indices do not change during a run. Each key is visited once, in no order.
// Complexity: one cache line for each key, and one for each further bucket of deferred keys.

#pragma once

#include "cpu/index/key_index.hpp"
#include "cpu/index/key_kernels.hpp"
#include "headway/embedding/table.hpp"
#include "stripe_map.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace headway::embedding {

/// The key indices of stripes, for lookups. Valid until one of them changes.
class StripeIndices {
 public:
  using Index = KeyIndex<WideBucket>;
  /// No stripes: set() adds them. Only keys of those may be looked up.
  explicit StripeIndices(StripeMap const& map) : map_(map), indices_{}, directories_{} {}
  /// All stripes.
  /// @param index_of function that maps a stripe to a pointer to its index
  template <class IndexOf>
  StripeIndices(StripeMap const& map, IndexOf index_of) : map_(map) {
    for (std::size_t stripe = 0; stripe < StripeMap::kCount; ++stripe) set(stripe, *index_of(stripe));
  }
  void set(std::size_t stripe, Index const& index) {
    indices_[stripe] = &index;
    directories_[stripe] = index.view();
  }
  [[nodiscard]] Index const& index_of(Hash hash) const { return *indices_[map_.of(hash)]; }
  [[nodiscard]] StripesView view() const {
    static_assert(StripesView::kStripeBits == StripeMap::kHashBits);
    return {.stripe_of_cell = map_.cells().data(), .directories = directories_.data()};
  }

 private:
  StripeMap const& map_;
  std::array<Index const*, StripeMap::kCount> indices_;
  std::array<DirectoryView<WideBucket>, StripeMap::kCount> directories_;
};

/// Finds the keys of a range of a batch, on one thread.
class StagedFind {
 public:
  StagedFind(Keys const& keys, KeyKernels const& kernels, StripeIndices const& indices)
      : keys_(keys), kernels_(kernels), indices_(indices) {}

  /// Calls `visit(i, word)` for each key i in [first, end), in no order; word is kEmpty if the key is absent.
  template <class Visit>
  void run(std::size_t first, std::size_t end, Visit visit) {
    prefetch(first, end);
    for (std::size_t at = first; at < end; at += kGroup) {
      probe_next(visit);
      step(group_at(at, end), group_at(at + kGroup, end), [&](std::size_t i, RowWord word) {
        if (word != RowWord::kErased) {
          visit(at + i, word);
        } else {
          defer(at + i);
        }
      });
    }
    while (!deferred_.empty()) probe_next(visit);
  }

  /// Prefetches the first buckets of the first group of [first, end), for a later run.
  void prefetch(std::size_t first, std::size_t end) {
    step({}, group_at(first, end), [](std::size_t, RowWord) {});
  }

 private:
  static constexpr std::size_t kGroup = KeyKernels::kGroup;
  /// A key whose probe goes on.
  struct Deferred {
    std::size_t i;
    Hash hash;
    StripeIndices::Index::ProbeState probing;
  };

  [[nodiscard]] KeyGroup group_at(std::size_t first, std::size_t end) const {
    if (first >= end) return {};
    return {.ids = &keys_.ids[first],
            .tables = keys_.tables.empty() ? nullptr : &keys_.tables[first],
            .table = keys_.table,
            .size = std::min(kGroup, end - first)};
  }

  /// Looks for the keys of `group` in `buckets_`, then sets `buckets_` to the first buckets of `next`.
  template <class Visit>
  void step(KeyGroup const& group, KeyGroup const& next, Visit visit) {
    std::array<std::uint64_t, kGroup> low;
    std::array<RowWord, kGroup> words;
    kernels_.hash(next, low.data());
    kernels_.look_and_locate(group, words.data(), indices_.view(), low.data(), next.size, buckets_.data());
    for (std::size_t i = 0; i < group.size; ++i) visit(i, words[i]);
  }

  void defer(std::size_t i) {
    Hash const hash = hash_of(keys_[i]);
    deferred_.push_back({.i = i, .hash = hash, .probing = indices_.index_of(hash).begin_at_second_bucket(hash)});
  }

  /// Looks into one more bucket for each deferred key.
  template <class Visit>
  void probe_next(Visit& visit) {
    std::erase_if(deferred_, [&](Deferred& each) {
      RowWord const word = indices_.index_of(each.hash).probe_next(keys_[each.i], each.hash, each.probing);
      if (word == RowWord::kErased) return false;
      visit(each.i, word);
      return true;
    });
  }

  Keys const& keys_;
  KeyKernels const& kernels_;
  StripeIndices const& indices_;
  std::array<WideBucket const*, kGroup> buckets_;  ///< First buckets of the group that is looked up next.
  std::vector<Deferred> deferred_;
};

}  // namespace headway::embedding
