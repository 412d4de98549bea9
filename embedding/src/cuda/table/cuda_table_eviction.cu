// SPDX-License-Identifier: Apache-2.0

// Eviction on the GPU: removes the rows (or pending keys) of least score while there are too many.
//
// Idea: a key's score packs step and count in the order of the policy (eviction_score()); ties go by hash. Two radix
// selections find the last (score, hash) that has to go, without sorting and without the host:
//   1. count the surplus; 2. collect the scores of all keys that may go; 3. select the last score; 4. collect the
//   hashes of the keys with exactly that score; 5. select the last hash; 6. erase every key up to (score, hash).
// The host launches all kernels if there may be too many rows (num_rows_at_most()). If there are not, they return at
// once.
//
// Example: two keys too many, scores A 5, B 5, C 3, D 9, hashes A 70, B 20.
//   The last score is 5, of which one key is wanted. Among A and B the last hash is 20. C and B go.
//
// Invariants: rows in use have score kStays and are never collected. The order is that of the CPU: score, then hash.
//   Between the kernels no score changes, so the erasure takes the keys that the selections counted.
// Complexity: three passes over the key index, 12 over the collected values, 16 bytes of scratch memory per key.
// Source: docs/design/cuda_tables.md, "What is evicted is chosen on the device"; radix_selection.cu.

#include "cuda/index/for_each_bucket.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/table/cuda_table.hpp"
#include "cuda/table/erasure.cuh"
#include "cuda/table/radix_selection.hpp"
#include "headway/base/status.hpp"

#include <algorithm>

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
    DeviceRowNotes const notes = rows.notes(row_of(word));
    if (notes.step >= oldest_in_use) return kStays;
    return eviction_score(policy, notes.step, notes.count, is_expired);
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
void CudaTable::remove_least_async(Scores const& scores, std::size_t most_scores, std::uint32_t const* num_too_many,
                                   std::uint64_t TableStatistics::*counter, cudaStream_t stream, std::uint64_t order) {
  // Both selections own scratch memory for the most keys that may have a score. It is freed in stream order.
  RadixSelection const by_score(most_scores, stream), by_hash(most_scores, stream);
  for_each_bucket_async(all_stripes(), Collector<Scores, AllScores>{scores, {num_too_many}, by_score.collected()},
                        stream, "collect scores");
  by_score.select_async(num_too_many, stream);
  for_each_bucket_async(all_stripes(),
                        Collector<Scores, HashesOfLastScore>{scores, {by_score.last(), order}, by_hash.collected()},
                        stream, "collect hashes");
  by_hash.select_async(&by_score.last()->num_wanted, stream);
  erase_if(all_stripes(), IsAmongLeast<Scores>{scores, by_score.last(), by_hash.last(), order}, counter, stream);
}

void CudaTable::evict_async(std::uint32_t const* num_too_many, cudaStream_t stream) {
  remove_least_async(RowScores{rows_.view(), oldest_in_use_, options_.eviction, expiry()},
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

void CudaTable::forget_pending_async(cudaStream_t stream) {
  std::size_t const most = options_.max_pending;
  auto const num_too_many = count_surplus_async(state_.data(), &TableState::num_pending, most, pending_low_water(most),
                                                TableOptions::kUnlimited, stream);
  remove_least_async(PendingScores{}, num_pending_at_most(), num_too_many.data(), &TableStatistics::forgotten, stream,
                     pending_order(step_));
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
  remove_least_async(RowScores{rows_.view(), kNoStepInUse, policy_of_limit(options_.eviction), expiry()},
                     num_rows_at_most(), num_too_many.data(), &TableStatistics::evicted, stream);
  return wait(stream).statistics.evicted - before;
}

}  // namespace headway::embedding
