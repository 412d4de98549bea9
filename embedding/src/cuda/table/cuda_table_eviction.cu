// SPDX-License-Identifier: Apache-2.0

// Eviction on the GPU: removes the rows (or pending keys) of least score while there are too many. A pending key has a
// count of lookups, but no row yet.
//
// Idea: a key's score packs the step of its last lookup and its lookup count: LRU has the step in the upper half, LFU
// the count (eviction_score()). Ties go by hash. Two radix selections find the last (score, hash) that has to go,
// without sorting and without the host:
//   1. count the surplus; 2. collect the scores of all keys that may go; 3. select the last score; 4. collect the
//   hashes of the keys with exactly that score; 5. select the last hash; 6. erase every key up to (score, hash).
// The host launches all kernels if there may be too many rows (num_rows_at_most()). If there are not, they return at
// once.
//
// Example: two keys too many, scores A 5, B 5, C 3, D 9, hashes A 70, B 20.
//   The last score is 5, of which one key is wanted. Among A and B the last hash is 20. C and B go.
//
// Parts: one scan of a large table takes several times as long as a step. So begin_step() evicts from a large table in
//   16 steps, from one part of the key index in each. A part holds about 1/16 of the keys (0.76 to 1.22 of that, as it
//   consists of whole stripes, of which the key index has 64), and goes down to its share of low_water. Example:
//   high_water 8,000,000, low_water 7,200,000. A step finds 8,000,001 rows, so it and the next 15 steps visit one part
//   each: a part with 1/16 of the keys keeps 450,000 rows. Hashes choose the part of a key, so each part is a random
//   sample of the rows.
//   The device decides in every step whether there are too many rows. The host only knows the most rows that there may
//   be, so it launches at least the parts that the device wants to visit.
//
// Invariants: rows in use (looked up in step oldest_in_use or later, so a backward pass may hold them) have score
//   kStays and are never collected. The order is that of the CPU: score, then hash; with parts it holds within a part.
//   Between the kernels no score changes, so the erasure takes the keys that the selections counted. Parts never take
//   the table below low_water.
// Complexity: three passes over the key index, 12 over the collected values, 16 bytes of scratch memory per key. With
//   parts a 16th of the passes per step, one more that counts the rows of the part, and 16 bytes per slot of the part.
// Source: docs/design/cuda_tables.md, "The device chooses the rows to evict"; radix_selection.cu.

#include "cuda/index/for_each_bucket.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/table/cuda_table.hpp"
#include "cuda/table/erasure.cuh"
#include "cuda/table/radix_selection.hpp"
#include "headway/base/status.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace headway::embedding {

namespace {

/// Score of a key that must stay. Greater than any score of a row that may go, whose step is before the oldest in use.
constexpr std::uint64_t kStays = ~std::uint64_t{0};

/// Scores of rows: the least goes first.
struct RowScores {
  RowsView rows;
  std::uint32_t oldest_in_use;
  EvictionPolicy policy;
  Expiry is_expired;

  __device__ std::uint64_t operator()(RowWord word) const {
    if (!is_row(word)) return kStays;
    DeviceRowMetadata const metadata = rows.metadata(row_of(word));
    if (metadata.step >= oldest_in_use) return kStays;
    return eviction_score(policy, metadata.step, metadata.count, is_expired);
  }
};

/// Scores of pending keys: fewest lookups go first.
struct PendingScores {
  __device__ std::uint64_t operator()(RowWord word) const { return is_pending(word) ? pending_count_of(word) : kStays; }
};

/// Values of the first collection: the scores of all keys that may go.
struct AllScores {
  std::uint32_t const* num_too_many;

  [[nodiscard]] __device__ bool is_idle() const { return *num_too_many == 0; }
  [[nodiscard]] __device__ bool has(std::uint64_t /*score*/) const { return true; }
  [[nodiscard]] __device__ std::uint64_t value(Key /*key*/, std::uint64_t score) const { return score; }
};

/// Values of the second collection: the hashes of the keys with the last score that goes.
struct HashesOfLastScore {
  Selected const* last_score;
  std::uint64_t order;  ///< XORed to hashes, so that ties can fall differently in each step; 0: lowest hash first.

  [[nodiscard]] __device__ bool is_idle() const { return last_score->num_wanted == 0; }
  [[nodiscard]] __device__ bool has(std::uint64_t score) const { return score == last_score->value; }
  [[nodiscard]] __device__ std::uint64_t value(Key key, std::uint64_t /*score*/) const {
    return hash_of(key).low ^ order;
  }
};

/// Visitor of for_each_bucket_async(): appends `values` of the keys that may go. A warp reads 32 buckets and reserves
/// its places in the output with one atomic.
template <class Scores, class Values>
struct Collector {
  Scores scores;
  Values values;
  Collected collected;

  __device__ void operator()(std::uint32_t /*stripe*/, WideBucket const* bucket) const {
    constexpr std::uint32_t kNumSlots = WideBucket::kNumSlots;
    if (values.is_idle()) return;
    std::uint64_t own[kNumSlots];
    std::uint32_t lanes[kNumSlots], total = 0;  // Ballots: lanes whose bucket has a value in this slot.
#pragma unroll
    for (std::uint32_t slot = 0; slot < kNumSlots; ++slot) {
      own[slot] = bucket == nullptr ? kStays : scores(bucket->words[slot]);
    }
#pragma unroll
    for (std::uint32_t slot = 0; slot < kNumSlots; ++slot) {
      lanes[slot] = __ballot_sync(kAllLanes, own[slot] != kStays && values.has(own[slot]));
      total += static_cast<std::uint32_t>(__popc(lanes[slot]));
    }
    if (total == 0) return;
    std::uint32_t const lane = threadIdx.x % kWarp;
    std::uint32_t place = 0;
    if (lane == 0) place = atomicAdd(collected.num_values, total);
    place = __shfl_sync(kAllLanes, place, 0);
#pragma unroll
    for (std::uint32_t slot = 0; slot < kNumSlots; ++slot) {
      if ((lanes[slot] >> lane & 1U) != 0) {
        auto const rank = static_cast<std::uint32_t>(__popc(lanes[slot] & ((1U << lane) - 1)));
        collected.values[place + rank] = values.value(bucket->key(slot), own[slot]);
      }
      place += static_cast<std::uint32_t>(__popc(lanes[slot]));
    }
  }
};

/// Predicate of the erasure: does a key come at or before (last score, last hash)?
template <class Scores>
struct IsAmongLeast {
  Scores scores;
  Selected const* last_score;
  Selected const* last_hash;  ///< Last hash that goes among the keys with the last score.
  std::uint64_t order;        ///< Same value as HashesOfLastScore::order.

  [[nodiscard]] __device__ bool is_idle() const { return last_hash->num_wanted == 0; }
  __device__ bool operator()(Key key, RowWord word) const {
    std::uint64_t const score = scores(word);
    if (score != last_score->value) return score < last_score->value;
    return (hash_of(key).low ^ order) <= last_hash->value;
  }
};

}  // namespace

template <class Scores>
void CudaTable::remove_least_async(StripeRange const& range, Scores const& scores, std::size_t most_scores,
                                   std::uint32_t const* num_too_many, std::uint64_t TableStatistics::*counter,
                                   cudaStream_t stream, std::uint64_t order) {
  // Both selections own scratch memory for the most keys that may have a score. It is freed in stream order.
  RadixSelection const by_score(most_scores, stream), by_hash(most_scores, stream);
  for_each_bucket_async(range, Collector<Scores, AllScores>{scores, {num_too_many}, by_score.collected()}, stream,
                        "collect scores");
  by_score.select_async(num_too_many, stream);
  for_each_bucket_async(range,
                        Collector<Scores, HashesOfLastScore>{scores, {by_score.last(), order}, by_hash.collected()},
                        stream, "collect hashes");
  by_hash.select_async(&by_score.last()->num_wanted, stream);
  erase_if(range, IsAmongLeast<Scores>{scores, by_score.last(), by_hash.last(), order}, counter, stream);
}

void CudaTable::evict_async(std::uint32_t const* num_too_many, cudaStream_t stream) {
  remove_least_async(all_stripes(), RowScores{rows_.view(), oldest_in_use_, options_.eviction, expiry()},
                     std::min(num_rows_at_most(), rows_.num_rows()), num_too_many, &TableStatistics::evicted, stream);
}

namespace {

/// Computes on the device how many of `TableState::*size` have to go: the surplus over rows_left() if there are more
/// than `num_allowed`, else 0.
DeviceBuffer<std::uint32_t> count_surplus_async(TableState const* state, std::uint32_t TableState::*size,
                                                std::size_t num_allowed, std::size_t num_left, std::size_t batch,
                                                cudaStream_t stream) {
  DeviceBuffer<std::uint32_t> num_too_many(1, stream);
  for_each_async(
      1,
      [num_allowed, num_left, batch, size = &(state->*size),
       num_too_many = num_too_many.data()] __device__(std::uint64_t) {
        std::uint32_t const num = *size;
        *num_too_many =
            num > num_allowed ? num - static_cast<std::uint32_t>(rows_left(num, num_allowed, num_left, batch)) : 0;
      },
      stream, "count what is too much");
  return num_too_many;
}

}  // namespace

void CudaTable::evict_async(std::size_t num_allowed, std::size_t num_left, cudaStream_t stream) {
  auto const num_too_many =
      count_surplus_async(state_.data(), &TableState::num_rows, num_allowed, num_left, options_.eviction_batch, stream);
  evict_async(num_too_many.data(), stream);
}

namespace {

/// Least high_water of a table that is evicted in parts.
constexpr std::size_t kLeastRowsForParts = std::size_t{1} << 20;
constexpr std::size_t kNumParts = 16;

/// First stripe of a part, or kCount for part kNumParts. Stripe s begins at the share 2^(s/64) - 1 of all keys
/// (StripeMap), so parts of equal shares have 6 stripes at the front and 3 at the back.
std::size_t first_stripe_of(std::size_t part) {
  double const share = static_cast<double>(part) / kNumParts;
  return static_cast<std::size_t>(std::lround(std::log2(1 + share) * StripeMap::kCount));
}

/// Visitor of for_each_bucket_async(): counts keys with a row.
struct RowCounter {
  TableState const* state;
  std::uint32_t* num_rows;

  __device__ void operator()(std::uint32_t /*stripe*/, WideBucket const* bucket) const {
    if (state->num_parts_left == 0) return;
    std::uint32_t own = 0;
    for (std::uint32_t slot = 0; bucket != nullptr && slot < WideBucket::kNumSlots; ++slot) {
      own += is_row(bucket->words[slot]) ? 1 : 0;
    }
    std::uint32_t const sum = __reduce_add_sync(kAllLanes, own);
    if (threadIdx.x % kWarp == 0 && sum > 0) atomicAdd(num_rows, sum);
  }
};

}  // namespace

void CudaTable::evict_in_step_async(bool may_be_too_many, cudaStream_t stream) {
  if (options_.high_water < kLeastRowsForParts) return evict_async(options_.high_water, options_.low_water, stream);
  // An import may have exceeded the limit. That surplus does not wait for the turns of the parts. Rows in use stay, so
  // this is tried until the host knows that the rest fits.
  if (has_imported_) evict_async(options_.max_rows, options_.low_water, stream);
  has_imported_ = has_imported_ && num_rows_at_most() > options_.max_rows;
  if (may_be_too_many) num_parts_left_ = kNumParts;
  evict_part_async(next_part_, stream);
  next_part_ = (next_part_ + 1) % kNumParts;
  --num_parts_left_;
}

void CudaTable::evict_part_async(std::size_t part, cudaStream_t stream) {
  std::size_t const first = first_stripe_of(part), count = first_stripe_of(part + 1) - first;
  StripeRange const range = stripes(first, count);
  std::size_t num_slots = 0;
  double share = 0;
  for (std::size_t i = first; i < first + count; ++i) {
    num_slots += stripes_[i].num_slots();
    share += shares_[i];
  }
  DeviceBuffer<std::uint32_t> const num_in_part(1, stream), num_too_many(1, stream);
  base::check_cuda(cudaMemsetAsync(num_in_part.data(), 0, sizeof(std::uint32_t), stream), "cudaMemsetAsync");
  for_each_async(
      1,
      [state = state_.data(), high = options_.high_water] __device__(std::uint64_t) {
        if (state->num_rows > high) state->num_parts_left = kNumParts;
      },
      stream, "decide on eviction");
  for_each_bucket_async(range, RowCounter{state_.data(), num_in_part.data()}, stream, "count rows of a part");
  for_each_async(
      1,
      [state = state_.data(), num_in_part = num_in_part.data(), num_too_many = num_too_many.data(),
       high = options_.high_water, low = options_.low_water, batch = options_.eviction_batch,
       low_in_part =
           static_cast<std::size_t>(share * static_cast<double>(options_.low_water))] __device__(std::uint64_t) {
        *num_too_many = 0;
        if (state->num_parts_left == 0) return;
        --state->num_parts_left;
        auto const too_many = [](std::size_t num, std::size_t allowed) { return num > allowed ? num - allowed : 0; };
        std::size_t const num_rows = state->num_rows;
        std::size_t const surplus = min(too_many(num_rows, low), too_many(*num_in_part, low_in_part));
        // At most `batch`, unless more must go to reach high_water (rows_left()).
        *num_too_many = static_cast<std::uint32_t>(min(surplus, max(batch, too_many(num_rows, high))));
      },
      stream, "count what is too much in a part");
  remove_least_async(range, RowScores{rows_.view(), oldest_in_use_, options_.eviction, expiry()},
                     std::min({num_slots, num_rows_at_most(), rows_.num_rows()}), num_too_many.data(),
                     &TableStatistics::evicted, stream);
}

void CudaTable::forget_pending_async(cudaStream_t stream) {
  std::size_t const most = options_.max_pending;
  auto const num_too_many = count_surplus_async(state_.data(), &TableState::num_pending, most, pending_low_water(most),
                                                TableOptions::kUnlimited, stream);
  remove_least_async(all_stripes(), PendingScores{}, num_pending_at_most(), num_too_many.data(),
                     &TableStatistics::forgotten, stream, pending_order(step_));
}

std::size_t CudaTable::evict(std::size_t num_rows) {
  base::expects(options_.eviction != EvictionPolicy::kNone, "the table has no policy of eviction");
  Call const call(*this);
  // evict() returns how many rows went, so it has to wait twice; the automatic evictions of begin_step() do not wait.
  auto const before = wait(call.stream()).statistics.evicted;
  if (num_rows_at_most() <= num_rows) return 0;
  evict_async(num_rows, num_rows, call.stream());
  return wait(call.stream()).statistics.evicted - before;
}

std::size_t CudaTable::evict_beyond_limit() {
  Call const call(*this);
  cudaStream_t const stream = call.stream();
  std::size_t const most = options_.max_rows;
  auto const before = wait(stream).statistics.evicted;
  if (num_rows_at_most() <= most) return 0;
  auto const num_too_many =
      count_surplus_async(state_.data(), &TableState::num_rows, most, most, TableOptions::kUnlimited, stream);
  remove_least_async(all_stripes(), RowScores{rows_.view(), kNoStepInUse, policy_of_limit(options_.eviction), expiry()},
                     num_rows_at_most(), num_too_many.data(), &TableStatistics::evicted, stream);
  return wait(stream).statistics.evicted - before;
}

}  // namespace headway::embedding
