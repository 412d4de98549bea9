// SPDX-License-Identifier: Apache-2.0

// Key index of one stripe, a part of a table that one thread works on at a time: extendible hashing over segments of
// cache-line buckets. A *word* is the 32-bit value of a key: its row, or how often a key without a row was looked up.
//
// Idea: a directory maps a prefix of the hash to a segment. A segment is an open-addressing hash table of 2^n buckets,
// and a bucket is one cache line. At a load of 0.75 to 0.81 (the limit differs by segment, so that they do not all grow
// at once) a segment grows. Below SegmentPool::kFullBytes it doubles. From there on it splits in two by the next bit of
// the hash. If erased keys hold more than a quarter of the limit, it is rebuilt at its size. So growth moves about
// 50,000 keys at a time, in cache, whatever the size of the table, and moves no row.
//
// Bits of a hash: the highest `hash_bits` of `low` chose the stripe, the next `depth` choose the directory entry, the
// lowest choose the first bucket. The lowest bits of `high` give the step of the probe.
//
// Example: depth 1, directory {A, B}. B splits by the next bit into C (prefix 10) and D (prefix 11).
//   The directory doubles to {A, A, C, D}, depth 2. If A splits next, the directory keeps its size.
//
// Invariants: no probe went past a bucket with an empty slot. So a find ends there, and an erase may empty a slot of
//   such a bucket; in other buckets it leaves a tombstone (kErased). A segment always has an empty slot, so every probe
//   ends. All directory entries with the prefix of a segment point to it.
// Complexity: find is O(1), one cache line for most keys. Insertion is O(1) amortised, at worst one segment of 64 Ki
//   slots and a directory that doubles.
// Source: Fagin et al., "Extendible hashing", ACM TODS 1979; segments of cache-line buckets: Nam et al., CCEH, FAST
//   2019.

#pragma once

#include "bucket.hpp"
#include "cpu/index/key_kernels.hpp"
#include "cpu/index/segment_pool.hpp"
#include "headway/embedding/key.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace headway::embedding {

/// Open-addressing hash table of the keys with one prefix of the hash.
template <class Bucket>
struct KeySegment {
  SegmentPool::Memory memory;
  std::size_t num_buckets;
  int depth;             ///< Length of the prefix: hash bits that its keys share, after hash_bits_ of the index.
  std::size_t limit;     ///< Used slots at which the segment grows.
  std::size_t num_used;  ///< Slots that are not empty: keys and tombstones.
  std::size_t num_live;  ///< Keys.
  std::uint64_t serial;  ///< Unique among all segments that the index ever had.

  [[nodiscard]] Bucket* buckets() const { return reinterpret_cast<Bucket*>(memory.get()); }
};

/// Maps the keys of a stripe to their words. One thread may use it, or several that only find.
template <class Bucket, class Probe = OddStepProbe>
class KeyIndex {
 public:
  /// @param hash_bits number of highest hash bits that are not used, as they chose the stripe
  explicit KeyIndex(SegmentPool& pool, int hash_bits = 0);

  /// Word of the key; kEmpty if it is absent.
  [[nodiscard]] RowWord find(Key key, Hash hash) const;
  /// Prefetches the key's first bucket.
  void prefetch(Hash hash) const;
  /// Directory for lookups of many keys at a time, whose entry is hash.low << hash_bits >> 1 >> shift. Valid until the
  /// next change.
  [[nodiscard]] DirectoryView<Bucket> view() const { return {.entries = directory_.data(), .shift = 63 - depth_}; }
  /// State of a probe: the next bucket to look into, and the step, both counted in buckets.
  struct ProbeState {
    std::size_t bucket, step;
  };
  /// Starts a probe at the second bucket of the key's probe sequence, and prefetches that bucket. For keys whose first
  /// bucket has been searched.
  [[nodiscard]] ProbeState begin_at_second_bucket(Hash hash) const;
  /// Looks into the next bucket. Returns the key's word, kEmpty if the key is absent, or kErased, which no key has, if
  /// the search must continue; the bucket after it is prefetched then.
  [[nodiscard]] RowWord probe_next(Key key, Hash hash, ProbeState& probing) const;
  /// The word of the key, valid until the next change. An absent key is inserted with the word of `make_word()`; if
  /// that is kEmpty it is not inserted, and the result is null. make_word() must not change this index, and neither it
  /// nor the caller may set the word to kErased, or the caller to kEmpty.
  /// @throws std::bad_alloc, and what make_word() throws; the key is not inserted then
  template <class MakeWord>
  RowWord* find_or_insert(Key key, Hash hash, MakeWord make_word);
  /// Erases the key. @returns its word; kEmpty if it was absent
  RowWord erase(Key key, Hash hash);
  void clear();
  /// Calls `visit(Key, RowWord&)` for each key, in unspecified order. `visit` must not set a word to kEmpty or kErased.
  template <class Visit>
  void for_each(Visit visit);
  /// Calls `visit(Key, RowWord)` for each key.
  template <class Visit>
  void for_each(Visit visit) const {
    const_cast<KeyIndex*>(this)->for_each([&](Key key, RowWord word) { visit(key, word); });
  }
  /// Position of a scan in parts. It stays valid when the index changes between parts.
  struct Cursor {
    std::uint64_t prefix = 0;  ///< Hashes below it are done. Holds hash bits after hash_bits_, at the top of the word.
    std::size_t bucket = 0;    ///< Next bucket in the segment of the prefix.
    std::uint64_t serial = 0;  ///< Serial of the segment that `bucket` refers to.
    std::size_t num_done = 0;  ///< Buckets scanned so far, without those of segments that were replaced meanwhile.
    bool is_over = false;
  };
  /// Calls `visit(Key, RowWord)` for the keys of the next `most_buckets` buckets, or fewer at the end of a segment. A
  /// whole scan visits each key that was present all the time, some twice if segments grew meanwhile.
  template <class Visit>
  void scan(Cursor& cursor, std::size_t most_buckets, Visit visit) const;
  /// Erases the keys for which `predicate(Key, RowWord)` is true.
  template <class Predicate>
  void erase_if(Predicate predicate);

  [[nodiscard]] std::size_t size() const;
  [[nodiscard]] std::size_t num_slots() const;
  [[nodiscard]] std::size_t num_segments() const { return segments_.size(); }

 private:
  static constexpr std::size_t kFirstBuckets = 16, kMostBuckets = SegmentPool::kFullBytes / sizeof(Bucket);
  /// Largest depth; no table reaches it. A segment this deep doubles instead of splitting, and then exceeds what
  /// SegmentPool::take() gives, which throws.
  static constexpr int kMostDepth = 30;

  using Segment = KeySegment<Bucket>;
  using Entry = DirectoryEntry<Bucket>;
  /// Slot that holds a key or may take one.
  struct Place {
    Bucket* bucket = nullptr;
    std::size_t slot = 0;

    [[nodiscard]] RowWord& word() const { return bucket->words[slot]; }
  };

  /// Directory entry of a hash. The two shifts keep the amount below 64 for depth 0.
  [[nodiscard]] std::size_t entry_of(Hash hash) const { return hash.low << hash_bits_ >> 1 >> (63 - depth_); }
  /// Bit mask of the live slots that hold the key.
  [[nodiscard]] static unsigned find_in(Bucket const& bucket, Key key);
  /// Bit mask of the slots with this word.
  [[nodiscard]] static unsigned slots_with(Bucket const& bucket, RowWord word);
  /// Looks for the key; null if it is absent. Sets `free` to the first slot of the probe that could take it, if unset.
  [[nodiscard]] static Place find_slot(Entry const& entry, Key key, Hash hash, Place& free);
  static void erase(Segment& segment, Bucket& bucket, std::size_t slot);
  [[nodiscard]] std::unique_ptr<Segment> make_segment(std::size_t num_buckets, int depth, std::uint64_t prefix);
  /// Doubles, splits or rebuilds the segment of `hash`.
  void grow(Hash hash);
  /// Replaces the segment of `hash`, of depth `depth`, by `segments` (one, or its two halves).
  void replace(Hash hash, int depth, std::vector<std::unique_ptr<Segment>> segments);

  SegmentPool& pool_;
  int hash_bits_;
  int depth_ = 0;  ///< Depth of the directory: the largest of all segments.
  std::vector<Entry> directory_;
  std::vector<std::unique_ptr<Segment>> segments_;
  std::uint64_t last_serial_ = 0;
};

template <class Bucket, class Probe>
inline unsigned KeyIndex<Bucket, Probe>::find_in(Bucket const& bucket, Key key) {
  unsigned found = 0;
  for (std::size_t slot = 0; slot < Bucket::kNumSlots; ++slot) {
    found |= static_cast<unsigned>(bucket.holds(slot, key) & is_live(bucket.words[slot])) << slot;
  }
  return found;
}

template <class Bucket, class Probe>
inline unsigned KeyIndex<Bucket, Probe>::slots_with(Bucket const& bucket, RowWord word) {
  unsigned found = 0;
  for (std::size_t slot = 0; slot < Bucket::kNumSlots; ++slot) {
    found |= static_cast<unsigned>(bucket.words[slot] == word) << slot;
  }
  return found;
}

template <class Bucket, class Probe>
inline RowWord KeyIndex<Bucket, Probe>::find(Key key, Hash hash) const {
  auto const& entry = directory_[entry_of(hash)];
  std::size_t const step = Probe::step(hash, entry.mask);
  for (std::size_t i = 0, at = hash.low & entry.mask; i <= entry.mask; ++i, at = (at + step) & entry.mask) {
    auto const& bucket = entry.buckets[at];
    if (auto const found = find_in(bucket, key); found != 0) {
      return bucket.words[static_cast<std::size_t>(std::countr_zero(found))];
    }
    if (slots_with(bucket, RowWord::kEmpty) != 0) break;
  }
  return RowWord::kEmpty;
}

template <class Bucket, class Probe>
inline void KeyIndex<Bucket, Probe>::prefetch(Hash hash) const {
  auto const& entry = directory_[entry_of(hash)];
  __builtin_prefetch(entry.buckets + (hash.low & entry.mask));
}

template <class Bucket, class Probe>
inline auto KeyIndex<Bucket, Probe>::begin_at_second_bucket(Hash hash) const -> ProbeState {
  auto const& entry = directory_[entry_of(hash)];
  std::size_t const step = Probe::step(hash, entry.mask), at = (hash.low + step) & entry.mask;
  __builtin_prefetch(entry.buckets + at);
  return {.bucket = at, .step = step};
}

template <class Bucket, class Probe>
inline RowWord KeyIndex<Bucket, Probe>::probe_next(Key key, Hash hash, ProbeState& probing) const {
  auto const& entry = directory_[entry_of(hash)];
  auto const& bucket = entry.buckets[probing.bucket];
  if (auto const found = find_in(bucket, key); found != 0) {
    return bucket.words[static_cast<std::size_t>(std::countr_zero(found))];
  }
  // A segment always has an empty slot, so every probe ends.
  if (slots_with(bucket, RowWord::kEmpty) != 0) return RowWord::kEmpty;
  probing.bucket = (probing.bucket + probing.step) & entry.mask;
  __builtin_prefetch(entry.buckets + probing.bucket);
  return RowWord::kErased;
}

template <class Bucket, class Probe>
template <class MakeWord>
RowWord* KeyIndex<Bucket, Probe>::find_or_insert(Key key, Hash hash, MakeWord make_word) {
  Place free;
  auto const place = find_slot(directory_[entry_of(hash)], key, hash, free);
  if (place.bucket != nullptr) return &place.word();
  if (auto const& segment = *directory_[entry_of(hash)].segment;
      segment.num_used >= segment.limit && free.word() == RowWord::kEmpty) {
    grow(hash);
    free = {};
    static_cast<void>(find_slot(directory_[entry_of(hash)], key, hash, free));
  }
  RowWord const word = make_word();
  if (word == RowWord::kEmpty) return nullptr;
  auto& segment = *directory_[entry_of(hash)].segment;
  if (free.word() == RowWord::kEmpty) ++segment.num_used;
  ++segment.num_live;
  free.bucket->set_key(free.slot, key);
  free.word() = word;
  return &free.word();
}

template <class Bucket, class Probe>
template <class Visit>
void KeyIndex<Bucket, Probe>::for_each(Visit visit) {
  for (auto const& segment : segments_) {
    for (std::size_t i = 0; i < segment->num_buckets; ++i) {
      auto& bucket = segment->buckets()[i];
      for (std::size_t slot = 0; slot < Bucket::kNumSlots; ++slot) {
        if (is_live(bucket.words[slot])) visit(bucket.key(slot), bucket.words[slot]);
      }
    }
  }
}

template <class Bucket, class Probe>
template <class Visit>
void KeyIndex<Bucket, Probe>::scan(Cursor& cursor, std::size_t most_buckets, Visit visit) const {
  if (cursor.is_over) return;
  auto const& segment = *directory_[depth_ == 0 ? 0 : cursor.prefix >> (64 - depth_)].segment;
  if (cursor.serial != segment.serial) {
    cursor.num_done -= cursor.bucket;
    cursor.bucket = 0;
    cursor.serial = segment.serial;
  }
  std::size_t const end = cursor.bucket + std::min(most_buckets, segment.num_buckets - cursor.bucket);
  cursor.num_done += end - cursor.bucket;
  for (; cursor.bucket < end; ++cursor.bucket) {
    auto const& bucket = segment.buckets()[cursor.bucket];
    for (std::size_t slot = 0; slot < Bucket::kNumSlots; ++slot) {
      if (is_live(bucket.words[slot])) visit(bucket.key(slot), bucket.words[slot]);
    }
  }
  if (cursor.bucket < segment.num_buckets) return;
  // Go on with the first prefix behind the segment; it wraps to 0 after the last one. The cursor may be inside the
  // segment, if clear() has replaced the deeper one that it was in.
  cursor.bucket = 0;
  std::uint64_t const last_of_segment = segment.depth == 0 ? ~std::uint64_t{0} : ~std::uint64_t{0} >> segment.depth;
  cursor.prefix = (cursor.prefix | last_of_segment) + 1;
  cursor.is_over = cursor.prefix == 0;
}

template <class Bucket, class Probe>
template <class Predicate>
void KeyIndex<Bucket, Probe>::erase_if(Predicate predicate) {
  for (auto const& segment : segments_) {
    for (std::size_t i = 0; i < segment->num_buckets; ++i) {
      auto& bucket = segment->buckets()[i];
      for (std::size_t slot = 0; slot < Bucket::kNumSlots; ++slot) {
        if (is_live(bucket.words[slot]) && predicate(bucket.key(slot), bucket.words[slot]))
          erase(*segment, bucket, slot);
      }
    }
  }
}

extern template class KeyIndex<WideBucket, OddStepProbe>;
extern template class KeyIndex<WideBucket, LinearProbe>;
extern template class KeyIndex<PackedBucket, OddStepProbe>;
extern template class KeyIndex<PackedBucket, LinearProbe>;

}  // namespace headway::embedding
