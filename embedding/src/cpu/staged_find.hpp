// A batch of lookups in stages, so that no lookup waits for memory.
//
// Idea: keys are taken in groups. A group is hashed. For each of its keys the first bucket is prefetched, and in turns
// with that a key of the group before is looked up in its first bucket, whose line has come meanwhile. So there are
// always as many lines under way as the processor can fetch at a time, and it computes beside them. A key whose first
// bucket is full of others goes on: its next bucket is prefetched too, and is looked into a group later. A lookup that
// probed to its end would wait for that line: every twentieth key or so has one.
//
// Example: groups A, B, C. Prefetch A. Look into A and prefetch B. Look into B and prefetch C; meanwhile a1 goes on in
//   its second bucket. Look into C; a1 goes on in its third one, and b7 in its second.
//
// Invariants: the index does not change meanwhile. Each key is visited once, in no order.
// Complexity: a line for each key, and one for each further bucket of those that go on.

#pragma once

#include "cpu/key_index.hpp"
#include "cpu/key_kernels.hpp"
#include "headway/embedding/table.hpp"
#include "stripe_map.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace headway::embedding {

/// The indices of all stripes, for lookups until the next change of any.
class StripeIndices {
 public:
  using Index = KeyIndex<WideBucket>;
  /// `index_of(stripe)` is a pointer to it.
  template <class IndexOf>
  StripeIndices(StripeMap const& map, IndexOf index_of) : map_(map) {
    for (std::size_t stripe = 0; stripe < StripeMap::kCount; ++stripe) {
      indices_[stripe] = index_of(stripe);
      directories_[stripe] = indices_[stripe]->view();
    }
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

/// Finds keys of a range of a batch, for one thread.
class StagedFind {
 public:
  StagedFind(Keys const& keys, KeyKernels const& kernels, StripeIndices const& indices)
      : keys_(keys), kernels_(kernels), indices_(indices) {}

  /// Calls `visit(i, word)` for each key from `first` to `end`.
  template <class Visit>
  void run(std::size_t first, std::size_t end, Visit visit) {
    step({}, group_at(first, end), [](std::size_t, RowWord) {});
    for (std::size_t at = first; at < end; at += kGroup) {
      look_on(visit);
      step(group_at(at, end), group_at(at + kGroup, end), [&](std::size_t i, RowWord word) {
        if (word != RowWord::kErased) {
          visit(at + i, word);
        } else {
          defer(at + i);
        }
      });
    }
    while (!deferred_.empty()) look_on(visit);
  }

 private:
  static constexpr std::size_t kGroup = KeyKernels::kGroup;
  struct Deferred {
    std::size_t i;
    Hash hash;
    StripeIndices::Index::Probing probing;
  };

  [[nodiscard]] KeyGroup group_at(std::size_t first, std::size_t end) const {
    if (first >= end) return {};
    return {.ids = &keys_.ids[first],
            .tables = keys_.tables.empty() ? nullptr : &keys_.tables[first],
            .table = keys_.table,
            .size = std::min(kGroup, end - first)};
  }

  /// Looks for the keys of `group`, which were located before, and locates those of `next`.
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
    deferred_.push_back({.i = i, .hash = hash, .probing = indices_.index_of(hash).begin_behind_first(hash)});
  }

  template <class Visit>
  void look_on(Visit& visit) {
    std::erase_if(deferred_, [&](Deferred& each) {
      RowWord const word = indices_.index_of(each.hash).look_on(keys_[each.i], each.hash, each.probing);
      if (word == RowWord::kErased) return false;
      visit(each.i, word);
      return true;
    });
  }

  Keys const& keys_;
  KeyKernels const& kernels_;
  StripeIndices const& indices_;
  std::array<WideBucket const*, kGroup> buckets_;
  std::vector<Deferred> deferred_;
};

}  // namespace headway::embedding
