#pragma once

#include "bucket.hpp"
#include "cpu/directory.hpp"
#include "cpu/segment_pool.hpp"
#include "headway/embedding/key.hpp"
#include "probe.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace headway::embedding {

template <class Bucket>
struct KeySegment {
  SegmentPool::Memory memory;
  std::size_t num_buckets;
  int depth;             ///< So many bits of the hash are alike in its keys, after the first hash_bits_ of the index.
  std::size_t limit;     ///< Of used slots.
  std::size_t num_used;  ///< Slots that are not empty.
  std::size_t num_live;
  std::uint64_t serial;  ///< Different from that of any other segment of the index so far.

  [[nodiscard]] Bucket* buckets() const { return reinterpret_cast<Bucket*>(memory.get()); }
};

/// The key structure of a stripe: which word belongs to which key. For one thread, or several that only find.
///
/// Extendible hashing: a directory of segments, each an open hash table of 2^n buckets. A segment that is three
/// quarters full doubles, and from SegmentPool::kFullBytes on splits in two; each at another load, up to 0.81, so that
/// not all of a table do so at once. So growth moves 48 thousand keys at a time, in cache, whatever the size of the
/// table, and no row.
template <class Bucket, class Probe = OddStepProbe>
class KeyIndex {
 public:
  /// `hash_bits` of the highest bits of hashes are not used: those by which a stripe is chosen.
  explicit KeyIndex(SegmentPool& pool, int hash_bits = 0);

  /// kEmpty if the key is not there.
  [[nodiscard]] RowWord find(Key key, Hash hash) const;
  /// Makes a find() soon after faster.
  void prefetch(Hash hash) const;
  /// What lookups of many keys at a time need, until the next change.
  [[nodiscard]] DirectoryView<Bucket> view() const { return {.entries = directory_.data(), .shift = 63 - depth_}; }
  /// Where a probe goes on.
  struct Probing {
    std::size_t at, step;
  };
  /// The bucket behind the first, which is prefetched.
  [[nodiscard]] Probing begin_behind_first(Hash hash) const;
  /// Looks into the next bucket, and prefetches the one behind it where the probe has to go on: then it is kErased.
  [[nodiscard]] RowWord look_on(Key key, Hash hash, Probing& probing) const;
  /// The word of the key, until the next change; if it was not there `make_word()` gives it one, or kEmpty to leave it
  /// out: then there is none. It must not be made kEmpty or kErased.
  /// @throws std::bad_alloc, and what make_word() throws; the key is not inserted then.
  template <class MakeWord>
  RowWord* find_or_insert(Key key, Hash hash, MakeWord make_word);
  /// The word that the key had; kEmpty if it was not there.
  RowWord erase(Key key, Hash hash);
  void clear();
  /// Calls `visit(Key, RowWord&)` for each key, in no order; it must not make a word kEmpty or kErased.
  template <class Visit>
  void for_each(Visit visit);
  template <class Visit>  ///< The same, of a RowWord.
  void for_each(Visit visit) const {
    const_cast<KeyIndex*>(this)->for_each([&](Key key, RowWord word) { visit(key, word); });
  }
  /// Where a scan by parts goes on. It stays good whatever changes in between.
  struct Cursor {
    std::uint64_t prefix = 0;  ///< Hashes below it are done: their highest bits, after the first hash_bits_.
    std::size_t bucket = 0;    ///< In the segment of the prefix.
    std::uint64_t serial = 0;  ///< Of the segment that `bucket` is of.
    std::size_t num_done = 0;  ///< Buckets so far.
    bool is_over = false;
  };
  /// Calls `visit(Key, RowWord)` for the keys of the next `most_buckets` buckets, or fewer at the end of a segment. By
  /// the end of the scan each key that was there all the time was visited, some twice if segments grew meanwhile.
  template <class Visit>
  void scan(Cursor& cursor, std::size_t most_buckets, Visit visit) const;
  /// Erases the keys for which `goes(Key, RowWord)`.
  template <class Goes>
  void erase_if(Goes goes);

  [[nodiscard]] std::size_t size() const;
  [[nodiscard]] std::size_t num_slots() const;
  [[nodiscard]] std::size_t num_segments() const { return segments_.size(); }

 private:
  static constexpr std::size_t kFirstBuckets = 16, kMostBuckets = SegmentPool::kFullBytes / sizeof(Bucket);
  /// No table comes here; SegmentPool::take() throws, should it happen.
  static constexpr int kMostDepth = 30;

  using Segment = KeySegment<Bucket>;
  using Entry = DirectoryEntry<Bucket>;
  /// Where a key is, or may be put.
  struct Place {
    Bucket* bucket = nullptr;
    std::size_t slot = 0;

    [[nodiscard]] RowWord& word() const { return bucket->words[slot]; }
  };

  [[nodiscard]] std::size_t entry_of(Hash hash) const { return hash.low << hash_bits_ >> 1 >> (63 - depth_); }
  [[nodiscard]] static unsigned find_in(Bucket const& bucket, Key key);
  [[nodiscard]] static unsigned slots_with(Bucket const& bucket, RowWord word);
  /// Looks for the key; `free` gets the first place where it could be put.
  [[nodiscard]] static Place look(Entry const& entry, Key key, Hash hash, Place& free);
  static void erase(Segment& segment, Bucket& bucket, std::size_t slot);
  [[nodiscard]] std::unique_ptr<Segment> make_segment(std::size_t num_buckets, int depth, std::uint64_t prefix);
  void grow(Hash hash);
  /// Puts `segments`, which share the prefix of `hash` up to `depth`, in the place of what is there.
  void replace(Hash hash, int depth, std::vector<std::unique_ptr<Segment>> segments);

  SegmentPool& pool_;
  int hash_bits_;
  int depth_ = 0;  ///< Of the directory: the most of all segments.
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
inline auto KeyIndex<Bucket, Probe>::begin_behind_first(Hash hash) const -> Probing {
  auto const& entry = directory_[entry_of(hash)];
  std::size_t const step = Probe::step(hash, entry.mask), at = (hash.low + step) & entry.mask;
  __builtin_prefetch(entry.buckets + at);
  return {.at = at, .step = step};
}

template <class Bucket, class Probe>
inline RowWord KeyIndex<Bucket, Probe>::look_on(Key key, Hash hash, Probing& probing) const {
  auto const& entry = directory_[entry_of(hash)];
  auto const& bucket = entry.buckets[probing.at];
  if (auto const found = find_in(bucket, key); found != 0) {
    return bucket.words[static_cast<std::size_t>(std::countr_zero(found))];
  }
  // A segment is never full, so that every probe comes to an end.
  if (slots_with(bucket, RowWord::kEmpty) != 0) return RowWord::kEmpty;
  probing.at = (probing.at + probing.step) & entry.mask;
  __builtin_prefetch(entry.buckets + probing.at);
  return RowWord::kErased;
}

template <class Bucket, class Probe>
template <class MakeWord>
RowWord* KeyIndex<Bucket, Probe>::find_or_insert(Key key, Hash hash, MakeWord make_word) {
  Place free;
  auto const place = look(directory_[entry_of(hash)], key, hash, free);
  if (place.bucket != nullptr) return &place.word();
  if (auto const& segment = *directory_[entry_of(hash)].segment;
      segment.num_used >= segment.limit && free.word() == RowWord::kEmpty) {
    grow(hash);
    free = {};
    static_cast<void>(look(directory_[entry_of(hash)], key, hash, free));
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
  std::size_t const end = std::min(cursor.bucket + most_buckets, segment.num_buckets);
  cursor.num_done += end - cursor.bucket;
  for (; cursor.bucket < end; ++cursor.bucket) {
    auto const& bucket = segment.buckets()[cursor.bucket];
    for (std::size_t slot = 0; slot < Bucket::kNumSlots; ++slot) {
      if (is_live(bucket.words[slot])) visit(bucket.key(slot), bucket.words[slot]);
    }
  }
  if (cursor.bucket < segment.num_buckets) return;
  // The next prefix of this depth; 0 after the last one.
  cursor.bucket = 0;
  cursor.prefix = segment.depth == 0 ? 0 : cursor.prefix + (std::uint64_t{1} << (64 - segment.depth));
  cursor.is_over = cursor.prefix == 0;
}

template <class Bucket, class Probe>
template <class Goes>
void KeyIndex<Bucket, Probe>::erase_if(Goes goes) {
  for (auto const& segment : segments_) {
    for (std::size_t i = 0; i < segment->num_buckets; ++i) {
      auto& bucket = segment->buckets()[i];
      for (std::size_t slot = 0; slot < Bucket::kNumSlots; ++slot) {
        if (is_live(bucket.words[slot]) && goes(bucket.key(slot), bucket.words[slot])) erase(*segment, bucket, slot);
      }
    }
  }
}

extern template class KeyIndex<WideBucket, OddStepProbe>;
extern template class KeyIndex<WideBucket, LinearProbe>;
extern template class KeyIndex<PackedBucket, OddStepProbe>;
extern template class KeyIndex<PackedBucket, LinearProbe>;

}  // namespace headway::embedding
