#pragma once

#include "bucket.hpp"
#include "cuda/batch_view.cuh"
#include "cuda/table_state.hpp"
#include "headway/embedding/key.hpp"
#include "headway/embedding/table.hpp"
#include "probe.hpp"
#include "stripe_map.hpp"

#include <cstdint>

namespace headway::embedding {

/// A slot that was claimed for a key in this call, and whose word follows.
inline constexpr RowWord kClaimed{0xfffffffe};

/// A stripe of the key structure, for kernels: 2^n buckets.
struct StripeView {
  WideBucket* buckets;
  std::uint64_t mask;
};

/// Some stripes of a table, one after the other.
struct StripeRange {
  StripeView const* views;  ///< Of all stripes.
  std::uint32_t first, count;
  std::uint64_t most_buckets;  ///< That one of them has.
};

/// The way of a key through the buckets of its stripe.
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

/// The key structure, for kernels.
struct IndexView {
  StripeView const* stripes;
  std::uint8_t const* stripe_of_cell;

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

/// A bucket in registers.
struct LoadedBucket {
  std::uint64_t ids[WideBucket::kNumSlots];
  std::uint32_t tables[WideBucket::kNumSlots];
  RowWord words[WideBucket::kNumSlots];

  /// The slot of a key that has a row or waits for one; -1: it is not here.
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
  /// The first slot that a key can be put in, an erased one too; -1: there is none.
  [[nodiscard]] __device__ int free_slot() const {
    int found = -1;
#pragma unroll
    for (int slot = static_cast<int>(WideBucket::kNumSlots) - 1; slot >= 0; --slot) {
      if (!is_live(words[slot])) found = slot;
    }
    return found;
  }
  /// Whether no probe went on from here.
  [[nodiscard]] __device__ bool has_empty() const {
    bool found = false;
#pragma unroll
    for (RowWord const word : words) found = found || word == RowWord::kEmpty;
    return found;
  }
  [[nodiscard]] __device__ RowWord word(int slot) const {
    RowWord found = words[0];
#pragma unroll
    for (int i = 1; i < static_cast<int>(WideBucket::kNumSlots); ++i) {
      if (slot == i) found = words[i];
    }
    return found;
  }
};

/// @param load reads 16 bytes
template <class Load>
__device__ inline LoadedBucket load_bucket(WideBucket const* bucket, Load load) {
  auto const* const quads = reinterpret_cast<uint4 const*>(bucket);
  uint4 const first = load(quads), second = load(quads + 1), tables = load(quads + 2), words = load(quads + 3);
  auto const wide = [](std::uint32_t low, std::uint32_t high) { return std::uint64_t{high} << 32 | low; };
  return {.ids = {wide(first.x, first.y), wide(first.z, first.w), wide(second.x, second.y), wide(second.z, second.w)},
          .tables = {tables.x, tables.y, tables.z, tables.w},
          .words = {RowWord{words.x}, RowWord{words.y}, RowWord{words.z}, RowWord{words.w}}};
}

/// From the cache of the multiprocessor, which may be as old as the kernel.
struct LoadCached {
  __device__ uint4 operator()(uint4 const* at) const { return __ldca(at); }
};
/// What other multiprocessors have written too.
struct LoadNewest {
  __device__ uint4 operator()(uint4 const* at) const { return __ldcg(at); }
};

/// Where a key is, or can be put: then its word is kEmpty or kErased.
struct Place {
  WideBucket* bucket = nullptr;
  int slot = 0;
  RowWord word = RowWord::kEmpty;

  [[nodiscard]] __device__ RowWord* address() const { return bucket->words.data() + slot; }
};

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

/// The word of a key; kEmpty if it is not there.
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
