// SPDX-License-Identifier: Apache-2.0
#pragma once

// Key index on the GPU: an open-addressing hash table in 64 stripes. One thread probes for one key, a bucket per step.
//
// Idea: the top 12 bits of hash.low choose the stripe (StripeMap). A stripe is an array of 2^n buckets in memory of
// its own. A bucket has 64 bytes: 4 ids, 4 tables, 4 words (RowWord). A word is the id of the key's row, the lookups so
// far of a pending key (it has no row yet), kEmpty, or kErased (a tombstone).
// A thread loads a bucket with four 16-byte loads and compares its slots in registers. It starts at the bucket given by
// the lowest bits of hash.low. It goes on by an odd step, given by the lowest bits of hash.high, until it finds the key
// or a bucket with an empty slot.
//
// Example: 4 buckets (mask 3), hash.low ends in 01, hash.high in 10. The step is 2 | 1 = 3, the walk 1, 0, 3, 2.
//   Bucket 1 is full of other keys and bucket 0 has an empty slot: the key is absent, find_place() returns that slot.
//   If a slot of bucket 1 is kErased, find_place() returns that slot instead: it is the first free one on the walk.
//
// Invariants: a key is in the index at most once, and never beyond the first bucket of its walk with an empty slot.
//   So a slot that loses its key becomes kEmpty only if its bucket already has an empty slot (word_without_key()).
//   An odd step visits each of 2^n buckets once. No lookup matches a kClaimed slot: its key may not be written yet.
// Complexity: a few buckets per key, since a stripe grows above a load of 0.75 (cuda_table_growth.cu); at most all.
// Source: MTGRBoost, section 4: equation 5 in units of buckets, theorem 1. One thread per key replaces the paper's
//   group of lanes, see docs/design/cuda_tables.md.

#include "bucket.hpp"
#include "cuda/batch/batch_view.cuh"
#include "cuda/state/table_state.hpp"
#include "headway/embedding/key.hpp"
#include "headway/embedding/table.hpp"
#include "stripe_map.hpp"

#include <cstdint>

namespace headway::embedding {

/// Word of a slot that this call has claimed for a key; a later kernel of the call replaces it.
inline constexpr RowWord kClaimed{0xfffffffe};

/// One stripe of the key index, for kernels: 2^n buckets.
struct StripeView {
  WideBucket* buckets;
  std::uint64_t mask;  ///< Number of buckets - 1.
};

/// Consecutive stripes of a table: views[first] to views[first + count - 1].
struct StripeRange {
  StripeView const* views;  ///< (StripeMap::kCount) Device memory.
  std::uint32_t first, count;
  std::uint64_t most_buckets;  ///< Buckets of the largest stripe of the range.
};

/// Probe sequence of a key: the buckets of its stripe in the order of the walk.
class BucketWalk {
 public:
  __device__ BucketWalk(StripeView const& stripe, Hash hash)
      : buckets_(stripe.buckets),
        mask_(static_cast<std::uint32_t>(stripe.mask)),
        at_(static_cast<std::uint32_t>(hash.low) & mask_),
        step_(static_cast<std::uint32_t>(OddStepProbe::step(hash, stripe.mask))) {}

  [[nodiscard]] __device__ WideBucket* bucket() const { return buckets_ + at_; }
  [[nodiscard]] __device__ bool is_over() const { return num_passed_ > mask_; }
  __device__ void go_on() {
    at_ = (at_ + step_) & mask_;
    ++num_passed_;
  }

 private:
  WideBucket* buckets_;
  std::uint32_t mask_, at_, step_, num_passed_ = 0;
};

/// The key index of a table, for kernels.
struct IndexView {
  StripeView const* stripes;           ///< (StripeMap::kCount)
  std::uint8_t const* stripe_of_cell;  ///< (StripeMap::kNumCells) Stripe by the top bits of hash.low.

  [[nodiscard]] __device__ std::uint32_t stripe_of(Hash hash) const {
    return __ldg(stripe_of_cell + (hash.low >> (64 - StripeMap::kHashBits)));
  }
  [[nodiscard]] __device__ BucketWalk walk(Hash hash) const {
    auto const at = reinterpret_cast<ulonglong2 const*>(stripes) + stripe_of(hash);
    ulonglong2 const stripe = __ldg(at);
    return {{.buckets = reinterpret_cast<WideBucket*>(stripe.x), .mask = stripe.y}, hash};
  }
};
static_assert(sizeof(StripeView) == sizeof(ulonglong2));

/// A copy of a bucket in registers.
struct LoadedBucket {
  std::uint64_t ids[WideBucket::kNumSlots];
  std::uint32_t tables[WideBucket::kNumSlots];
  RowWord words[WideBucket::kNumSlots];

  /// Slot of a key that has a row or is pending; -1 if the key is not in this bucket.
  [[nodiscard]] __device__ int slot_of(Key key) const {
    int found = -1;
#pragma unroll
    for (int slot = 0; slot < static_cast<int>(WideBucket::kNumSlots); ++slot) {
      bool const is_it =
          ids[slot] == key.id && tables[slot] == key.table && is_live(words[slot]) && words[slot] != kClaimed;
      if (is_it) found = slot;
    }
    return found;
  }
  /// First slot that is kEmpty or kErased; -1 if there is none.
  [[nodiscard]] __device__ int free_slot() const {
    int found = -1;
#pragma unroll
    for (int slot = static_cast<int>(WideBucket::kNumSlots) - 1; slot >= 0; --slot) {
      if (!is_live(words[slot])) found = slot;
    }
    return found;
  }
  /// Does the bucket have a kEmpty slot? Then probes end here.
  [[nodiscard]] __device__ bool has_empty() const {
    bool found = false;
#pragma unroll
    for (RowWord const word : words) found = found || word == RowWord::kEmpty;
    return found;
  }
  /// words[slot] without dynamic indexing, which would move the array from registers to local memory.
  [[nodiscard]] __device__ RowWord word(int slot) const {
    RowWord found = words[0];
#pragma unroll
    for (int i = 1; i < static_cast<int>(WideBucket::kNumSlots); ++i) {
      if (slot == i) found = words[i];
    }
    return found;
  }
};

/// Copies a bucket from memory to registers. @param load reads 16 bytes
template <class Load>
__device__ inline LoadedBucket load_bucket(WideBucket const* bucket, Load load) {
  auto const* const quads = reinterpret_cast<uint4 const*>(bucket);
  uint4 const first = load(quads), second = load(quads + 1), tables = load(quads + 2), words = load(quads + 3);
  auto const wide = [](std::uint32_t low, std::uint32_t high) { return std::uint64_t{high} << 32 | low; };
  return {.ids = {wide(first.x, first.y), wide(first.z, first.w), wide(second.x, second.y), wide(second.z, second.w)},
          .tables = {tables.x, tables.y, tables.z, tables.w},
          .words = {RowWord{words.x}, RowWord{words.y}, RowWord{words.z}, RowWord{words.w}}};
}

/// Load through L1. The value may be as old as the start of the kernel.
struct LoadCached {
  __device__ uint4 operator()(uint4 const* at) const { return __ldca(at); }
};
/// Load from L2. The value includes atomics and writes of other SMs.
struct LoadNewest {
  __device__ uint4 operator()(uint4 const* at) const { return __ldcg(at); }
};

/// Slot of a key, or, if its word is kEmpty or kErased, a free slot for it.
struct Place {
  WideBucket* bucket = nullptr;  ///< nullptr: the key is absent and there is no free slot.
  int slot = 0;
  RowWord word = RowWord::kEmpty;

  [[nodiscard]] __device__ RowWord* address() const { return bucket->words.data() + slot; }
};

/// Finds the slot of a key, or else the first free slot on its walk.
template <class Load>
__device__ inline Place find_place(BucketWalk walk, Key key, Load load) {
  Place free;
  for (; !walk.is_over(); walk.go_on()) {
    auto const bucket = load_bucket(walk.bucket(), load);
    if (int const slot = bucket.slot_of(key); slot >= 0) return {walk.bucket(), slot, bucket.word(slot)};
    if (int const slot = bucket.free_slot(); slot >= 0 && free.bucket == nullptr) {
      free = {walk.bucket(), slot, bucket.word(slot)};
    }
    if (bucket.has_empty()) break;
  }
  return free;
}

/// Word of a key; kEmpty if the key is absent. Reads through L1, so the index must not change during the kernel.
__device__ inline RowWord find_word(IndexView const& index, Key key) {
  for (auto walk = index.walk(hash_of(key)); !walk.is_over(); walk.go_on()) {
    auto const bucket = load_bucket(walk.bucket(), LoadCached());
    int const slot = bucket.slot_of(key);
    if (slot >= 0) return bucket.word(slot);
    if (bucket.has_empty()) break;
  }
  return RowWord::kEmpty;
}

}  // namespace headway::embedding
