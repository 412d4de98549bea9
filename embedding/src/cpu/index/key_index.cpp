// SPDX-License-Identifier: Apache-2.0

// Growth of a key index: the parts of KeyIndex that are not in the path of a lookup. key_index.hpp has the idea.

#include "cpu/index/key_index.hpp"

#include <algorithm>

namespace headway::embedding {

namespace {

/// Used slots at which a segment grows: 0.75 of all slots and up to 1/16 more, by a hash of its prefix.
std::size_t limit_of(std::size_t num_slots, std::uint64_t prefix) {
  constexpr std::uint64_t kGoldenRatio = 0x9e3779b97f4a7c15;
  auto const share = static_cast<std::size_t>((prefix + 1) * kGoldenRatio >> 56);  // Units of 1/256.
  return num_slots / 4 * 3 + num_slots / 16 * share / 256;
}

}  // namespace

template <class Bucket, class Probe>
KeyIndex<Bucket, Probe>::KeyIndex(SegmentPool& pool, int hash_bits) : pool_(pool), hash_bits_(hash_bits) {
  clear();
}

template <class Bucket, class Probe>
void KeyIndex<Bucket, Probe>::clear() {
  auto first = make_segment(kFirstBuckets, 0, 0);
  directory_.assign(1, {.buckets = first->buckets(), .mask = kFirstBuckets - 1, .segment = first.get()});
  segments_.clear();
  segments_.push_back(std::move(first));
  depth_ = 0;
}

template <class Bucket, class Probe>
auto KeyIndex<Bucket, Probe>::find_slot(Entry const& entry, Key key, Hash hash, Place& free) -> Place {
  std::size_t const step = Probe::step(hash, entry.mask);
  for (std::size_t i = 0, at = hash.low & entry.mask; i <= entry.mask; ++i, at = (at + step) & entry.mask) {
    auto& bucket = entry.buckets[at];
    if (auto const found = find_in(bucket, key); found != 0) {
      return {.bucket = &bucket, .slot = static_cast<std::size_t>(std::countr_zero(found))};
    }
    auto const empty = slots_with(bucket, RowWord::kEmpty);
    // Remember the first slot that could take the key, but go on: the key itself may be in a later bucket.
    if (auto const unused = empty | slots_with(bucket, RowWord::kErased); unused != 0 && free.bucket == nullptr) {
      free = {.bucket = &bucket, .slot = static_cast<std::size_t>(std::countr_zero(unused))};
    }
    if (empty != 0) break;
  }
  return {};
}

template <class Bucket, class Probe>
RowWord KeyIndex<Bucket, Probe>::erase(Key key, Hash hash) {
  Place free;
  auto const& entry = directory_[entry_of(hash)];
  auto const place = find_slot(entry, key, hash, free);
  if (place.bucket == nullptr) return RowWord::kEmpty;
  RowWord const word = place.word();
  erase(*entry.segment, *place.bucket, place.slot);
  return word;
}

template <class Bucket, class Probe>
void KeyIndex<Bucket, Probe>::erase(Segment& segment, Bucket& bucket, std::size_t slot) {
  // No probe went past a bucket with an empty slot, so the slot may become empty too.
  bool const may_be_empty = slots_with(bucket, RowWord::kEmpty) != 0;
  --segment.num_live;
  if (may_be_empty) --segment.num_used;
  bucket.words[slot] = may_be_empty ? RowWord::kEmpty : RowWord::kErased;
}

template <class Bucket, class Probe>
auto KeyIndex<Bucket, Probe>::make_segment(std::size_t num_buckets, int depth, std::uint64_t prefix)
    -> std::unique_ptr<Segment> {
  return std::make_unique<Segment>(Segment{.memory = pool_.take(num_buckets * sizeof(Bucket)),
                                           .num_buckets = num_buckets,
                                           .depth = depth,
                                           .limit = limit_of(num_buckets * Bucket::kNumSlots, prefix),
                                           .num_used = 0,
                                           .num_live = 0,
                                           .serial = ++last_serial_});
}

template <class Bucket, class Probe>
void KeyIndex<Bucket, Probe>::grow(Hash hash) {
  auto const& old = *directory_[entry_of(hash)].segment;
  // Rebuild at the same size then; a table with many insertions and erasures would otherwise grow to half the load.
  bool const has_many_erased = old.num_live < old.limit / 4 * 3;
  bool const splits = !has_many_erased && old.num_buckets >= kMostBuckets && old.depth < kMostDepth;
  std::size_t const num_buckets = has_many_erased || splits ? old.num_buckets : 2 * old.num_buckets;
  // The `depth` hash bits that all keys of the segment share. A shift by 64 would be undefined, hence the case of 0.
  std::uint64_t const prefix = old.depth == 0 ? 0 : hash.low << hash_bits_ >> (64 - old.depth);

  std::vector<std::unique_ptr<Segment>> made;
  int const depth = splits ? old.depth + 1 : old.depth;
  for (std::uint64_t half = 0; half < (splits ? 2U : 1U); ++half) {
    made.push_back(make_segment(num_buckets, depth, splits ? prefix * 2 + half : prefix));
  }
  // Rehash all live keys into the new segments. Tombstones are left behind.
  for (std::size_t i = 0; i < old.num_buckets; ++i) {
    auto const& bucket = old.buckets()[i];
    for (std::size_t slot = 0; slot < Bucket::kNumSlots; ++slot) {
      if (!is_live(bucket.words[slot])) continue;
      Key const key = bucket.key(slot);
      Hash const key_hash = hash_of(key);
      // The next hash bit decides between the two halves.
      auto& segment = *made[splits ? key_hash.low << (hash_bits_ + old.depth) >> 63 : 0];
      Place free;
      static_cast<void>(find_slot({segment.buckets(), num_buckets - 1, &segment}, key, key_hash, free));
      free.bucket->set_key(free.slot, key);
      free.word() = bucket.words[slot];
      ++segment.num_used;
      ++segment.num_live;
    }
  }
  replace(hash, old.depth, std::move(made));
}

template <class Bucket, class Probe>
void KeyIndex<Bucket, Probe>::replace(Hash hash, int depth, std::vector<std::unique_ptr<Segment>> segments) {
  // All that can throw comes first, so that a failure leaves the index as it was.
  segments_.reserve(segments_.size() + segments.size());
  if (segments.front()->depth > depth_) {
    // Double the directory: each entry is replaced by two copies.
    std::vector<Entry> doubled;
    doubled.reserve(2 * directory_.size());
    for (auto const& entry : directory_) doubled.insert(doubled.end(), 2, entry);
    directory_ = std::move(doubled);
    ++depth_;
  }
  // Nothing below throws. `count` entries, from `first` on, share the prefix of the old segment.
  std::size_t const count = std::size_t{1} << (depth_ - depth);
  std::size_t const first = entry_of(hash) / count * count;
  auto const* const old = directory_[first].segment;
  for (std::size_t i = 0; i < count; ++i) {
    auto& segment = *segments[i * segments.size() / count];
    directory_[first + i] = {.buckets = segment.buckets(), .mask = segment.num_buckets - 1, .segment = &segment};
  }
  std::erase_if(segments_, [&](auto const& each) { return each.get() == old; });
  for (auto& each : segments) segments_.push_back(std::move(each));
}

template <class Bucket, class Probe>
std::size_t KeyIndex<Bucket, Probe>::size() const {
  std::size_t sum = 0;
  for (auto const& segment : segments_) sum += segment->num_live;
  return sum;
}

template <class Bucket, class Probe>
std::size_t KeyIndex<Bucket, Probe>::num_slots() const {
  std::size_t sum = 0;
  for (auto const& segment : segments_) sum += segment->num_buckets * Bucket::kNumSlots;
  return sum;
}

template class KeyIndex<WideBucket, OddStepProbe>;
template class KeyIndex<WideBucket, LinearProbe>;
template class KeyIndex<PackedBucket, OddStepProbe>;
template class KeyIndex<PackedBucket, LinearProbe>;

}  // namespace headway::embedding
