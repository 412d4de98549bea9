// SPDX-License-Identifier: Apache-2.0

// Growth on the GPU: before each insertion, makes room in the key index and in the row store. The key index consists of
// 64 stripes, each a hash table in an array of its own. A slot is used if it has a key (live) or is a tombstone
// (kErased).
//
// Idea: only the device knows how many keys were inserted, so the host bounds it (StateMirror): the newest copy of the
// counters, plus all keys of the batches since. A stripe with share p of the keys gets at most n p + 6 sqrt(n p) + 16
// of n new keys: six standard deviations, as hashes are uniform. While that fits into every stripe, nothing happens.
// Otherwise the host waits for newer copies, then for the stream, and grows the stripes that are really full. A kernel
// re-inserts the live slots of the old array into a new one; another one replaces the StripeView. Rows never move:
// their store only maps more memory.
//
// Example: a stripe of 16 buckets has 64 slots. It is full above 48 used slots (0.75), or if it may pass 57 (0.9).
//   50 live slots and at most 10 new keys: 60 / 0.75 = 80 slots, so the new array has 32 buckets.
//   30 live, 20 erased and 10 new keys: 40 / 0.75 = 53 slots, so it gets 16 buckets again, without the erased slots.
//
// Invariants: an array has 2^n buckets; growth never makes it smaller, only clear() does. After growth no slot of the
//   stripe is kErased (used = live). All is stream-ordered: kernels enqueued before set_stripe() use the old array,
//   which is freed behind them.
// Complexity: amortised O(1) per key. One growth copies one of 64 stripes. The share of stripe s is proportional to
//   2^(s/64), so the stripes double at different times and no step copies the whole index.
// Source: MTGRBoost, section 4 (the key index grows, rows stay); stripes: docs/design/cuda_tables.md.

#include "cuda/runtime/launch.cuh"
#include "cuda/table/cuda_table.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <new>
#include <span>
#include <utility>

namespace headway::embedding {

namespace {

constexpr std::size_t kFirstBuckets = 16;
/// Load limits: used slots over all slots of a stripe. A stripe grows before an insertion if it is above kFullShare, or
/// if the insertion may take it above kMostShare, where probes become long.
constexpr double kFullShare = 0.75, kMostShare = 0.9;

/// Upper bound for the keys of a batch that fall into a stripe with this share of all keys: mean + 6 sigma + 16.
std::size_t most_of_stripe(std::size_t num_keys, double share) {
  double const mean = static_cast<double>(num_keys) * share;
  return std::min(num_keys, static_cast<std::size_t>(mean + 6 * std::sqrt(mean) + 16));
}

/// Buckets of a stripe for `num_keys` keys at a load of at most kFullShare: a power of two.
std::size_t buckets_for(std::size_t num_keys) {
  double const slots = static_cast<double>(num_keys) / kFullShare;
  return std::bit_ceil(std::max(kFirstBuckets, static_cast<std::size_t>(slots) / WideBucket::kNumSlots + 1));
}

DeviceBuffer<WideBucket> empty_buckets(std::size_t num_buckets, cudaStream_t stream) {
  DeviceBuffer<WideBucket> buckets(num_buckets, stream);
  base::check_cuda(cudaMemsetAsync(buckets.data(), 0, num_buckets * sizeof(WideBucket), stream), "cudaMemsetAsync");
  return buckets;
}

/// Inserts an absent key into an array that no other kernel reads yet, so its word can be published before its key.
/// Threads of the same launch only compete for free slots, which the compare-and-swap decides. It cannot fail: the
/// new array has more slots than the old one has keys.
__device__ void put(StripeView const& stripe, Key key, RowWord word) {
  for (BucketWalk walk(stripe, hash_of(key)); !walk.is_over(); walk.go_on()) {
    auto* const bucket = walk.bucket();
    for (std::size_t slot = 0; slot < WideBucket::kNumSlots; ++slot) {
      auto* const at = reinterpret_cast<std::uint32_t*>(&bucket->words[slot]);
      if (atomicCAS(at, 0U, static_cast<std::uint32_t>(word)) != 0) continue;
      bucket->set_key(slot, key);
      return;
    }
  }
}

}  // namespace

void CudaTable::make_stripes(cudaStream_t stream) {
  for (std::size_t i = 0; i < stripes_.size(); ++i) {
    set_stripe(i, empty_buckets(kFirstBuckets, stream), kFirstBuckets, stream);
  }
}

StripeRange CudaTable::stripes(std::size_t first, std::size_t count) const {
  auto const range = std::span(stripes_).subspan(first, count);
  auto const largest = std::ranges::max_element(range, {}, &Stripe::num_buckets);
  return {.views = stripe_views_.data(),
          .first = static_cast<std::uint32_t>(first),
          .count = static_cast<std::uint32_t>(count),
          .most_buckets = largest->num_buckets};
}

void CudaTable::set_stripe(std::size_t index, DeviceBuffer<WideBucket> buckets, std::size_t num_buckets,
                           cudaStream_t stream) {
  auto& stripe = stripes_[index];
  DeviceBuffer<WideBucket> old = std::move(stripe.buckets);
  old.use_on(stream);  // Frees the old array in the order of this stream, after its last readers.
  stripe.num_buckets = num_buckets;
  StripeView const view{.buckets = buckets.data(), .mask = num_buckets - 1};
  stripe.buckets = std::move(buckets);
  for_each_async(
      1, [view, at = stripe_views_.data() + index] __device__(std::uint64_t) { *at = view; }, stream, "set stripe");
}

void CudaTable::grow_stripe(std::size_t index, std::size_t num_buckets, cudaStream_t stream) {
  auto const& stripe = stripes_[index];
  auto grown = empty_buckets(num_buckets, stream);
  StripeView const to{.buckets = grown.data(), .mask = num_buckets - 1};
  for_each_async(
      stripe.num_slots(),
      [to, from = stripe.buckets.data()] __device__(std::uint64_t i) {
        auto const& bucket = from[i / WideBucket::kNumSlots];
        std::size_t const slot = i % WideBucket::kNumSlots;
        if (is_live(bucket.words[slot])) put(to, bucket.key(slot), bucket.words[slot]);
      },
      stream, "grow stripe");
  set_stripe(index, std::move(grown), num_buckets, stream);
  for_each_async(
      // The new array has no erased slots, so all its used slots are live.
      1, [index, state = state_.data()] __device__(std::uint64_t) { state->used[index] = state->live[index]; }, stream,
      "count slots");
  mirror_.forget_erased(index);
}

void CudaTable::grow_stripes(std::size_t num_keys, cudaStream_t stream) {
  // `state` is an older copy; mirror_.num_unknown_keys() are those of the batches since, and num_keys those of this
  // one.
  auto const is_full = [&](TableState const& state, std::size_t i) {
    std::size_t const more = most_of_stripe(mirror_.num_unknown_keys() + num_keys, shares_[i]);
    auto const slots = static_cast<double>(stripes_[i].num_slots());
    auto const used = static_cast<double>(state.used[i]);
    return used > kFullShare * slots || used + static_cast<double>(more) > kMostShare * slots;
  };
  auto const is_any_full = [&](TableState const& state) {
    for (std::size_t i = 0; i < stripes_.size(); ++i) {
      if (is_full(state, i)) return true;
    }
    return false;
  };
  // Cheapest first: copies of the counters that are on their way, then (if still in doubt) the whole stream.
  while (is_any_full(mirror_.known()) && mirror_.wait_for_one()) continue;
  if (!is_any_full(mirror_.known())) return;
  TableState const state = mirror_.num_unknown_keys() > 0 ? wait(stream) : mirror_.known();
  for (std::size_t i = 0; i < stripes_.size(); ++i) {
    if (!is_full(state, i)) continue;
    std::size_t const more = most_of_stripe(num_keys, shares_[i]);
    grow_stripe(i, std::max(buckets_for(state.live[i] + more), stripes_[i].num_buckets), stream);
  }
}

void CudaTable::grow_rows(std::size_t num_keys, Rules const& rules, cudaStream_t stream) {
  auto const grow = [&](TableState const& state, std::size_t num_new) {
    // With hot_count rows of rare keys are kept apart, in bfloat16.
    for (std::size_t i = 0; i < (options_.hot_count > 0 ? 2U : 1U); ++i) {
      // Insertion takes rows from the free list first, but the host does not know how many the list will have.
      std::size_t const next = state.free_rows[i].next;
      std::size_t const most = std::max({next, most_rows(rules) + 1, std::size_t{state.num_rows} + 1});
      rows_.grow(Precision{static_cast<std::uint8_t>(i)}, std::min(next + num_new, most));
    }
  };
  try {
    grow(mirror_.known(), mirror_.num_unknown_keys() + num_keys);
  } catch (std::exception const&) {  // Out of memory for the upper bound; the exact number may still fit.
    grow(wait(stream), num_keys);
  }
}

void CudaTable::prepare(std::size_t num_keys, Rules const& rules, cudaStream_t stream) {
  grow_stripes(num_keys, stream);
  grow_rows(num_keys, rules, stream);
  if (options_.hot_count > 0) rows_.grow_lists();  // The lists of free rows, which hot keys leave behind.
}

}  // namespace headway::embedding
