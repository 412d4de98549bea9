// Which rows of a table on a device go: with time, or as there are too many.

#include "cuda/cub_scratch.hpp"
#include "cuda/cuda_call.hpp"
#include "cuda/cuda_table.hpp"
#include "cuda/launch.cuh"
#include "cuda/row_moves.cuh"
#include "expect_batch.hpp"
#include "headway/comm/status.hpp"
#include "table_options.hpp"

#include <cub/device/device_radix_sort.cuh>

#include <algorithm>
#include <string>
#include <utility>

namespace headway::embedding {

namespace {

/// What goes first is least. Of equal ones those of the lowest hash.
__device__ std::uint64_t score_of(EvictionPolicy policy, DeviceRowNotes const& notes) {
  std::uint64_t const step = notes.step, count = notes.count;
  return policy == EvictionPolicy::kLeastRecentlyUsed ? step << 32 | count : count << 32 | step;
}

struct IsInUse {
  RowsView rows;
  std::uint32_t oldest_in_use;

  __device__ bool operator()(RowWord word) const { return rows.notes(row_of(word)).step >= oldest_in_use; }
};

/// Values that kernels add to, in any order, as many as there is room for.
struct Collected {
  std::uint64_t* values;
  std::uint32_t* size;

  __device__ void add(std::uint64_t value) const { values[atomicAdd(size, 1U)] = value; }
};

class Collection {
 public:
  Collection(std::size_t capacity, cudaStream_t stream) : values_(capacity, stream), size_(1, stream), stream_(stream) {
    check(cudaMemsetAsync(size_.data(), 0, sizeof(std::uint32_t), stream), "cudaMemsetAsync");
  }
  [[nodiscard]] Collected view() const { return {values_.data(), size_.data()}; }
  [[nodiscard]] std::size_t size() const {
    std::uint32_t size = 0;
    copy_to_host(size_, std::span(&size, 1), stream_);
    return size;
  }
  /// The k-th least, from 0; of k + 1 values or more.
  [[nodiscard]] std::uint64_t least(std::size_t k, std::size_t num_values) const {
    DeviceBuffer<std::uint64_t> sorted(num_values, stream_);
    run_with_scratch("SortKeys", stream_, [&](void* scratch, std::size_t& num_bytes) {
      return cub::DeviceRadixSort::SortKeys(scratch, num_bytes, values_.data(), sorted.data(), num_values, 0, 64,
                                            stream_);
    });
    std::uint64_t value = 0;
    check(cudaMemcpyAsync(&value, sorted.data() + k, sizeof value, cudaMemcpyDeviceToHost, stream_), "cudaMemcpyAsync");
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    return value;
  }

 private:
  DeviceBuffer<std::uint64_t> values_;
  DeviceBuffer<std::uint32_t> size_;
  cudaStream_t stream_;
};

/// Takes a key out; its slot becomes empty if no probe ever went on from the bucket.
__device__ void empty_slot(WideBucket& bucket, std::size_t slot, std::uint32_t stripe, TableState& state) {
  bool is_last = false;
  for (RowWord const word : bucket.words) is_last = is_last || word == RowWord::kEmpty;
  bucket.words[slot] = is_last ? RowWord::kEmpty : RowWord::kErased;
  atomicSub(&state.live[stripe], 1U);
  if (is_last) atomicSub(&state.used[stripe], 1U);
}

__device__ void give_up_row(TableState& state, FreeLists const& lists, RowId row) {
  free_row(state, lists, row);
  atomicSub(&state.num_rows, 1U);
  if (precision_of(row) == Precision::kBfloat16) atomicSub(&state.num_cold, 1U);
}

}  // namespace

void CudaTable::erase(Keys const& keys) {
  expect_one_each(keys, keys.size(), "keys");
  Call const call(*this);
  cudaStream_t const stream = call.stream();
  if (keys.size() == 0) return;
  ++generation_;
  rows_.grow_lists();
  for_each_async(
      keys.size(),
      [batch = view_of(keys), index = index(), lists = rows_.free_lists(),
       state = state_.data()] __device__(std::uint64_t i) {
        if (i >= batch.size()) return;
        Key const key = batch.key(static_cast<std::uint32_t>(i));
        Hash const hash = hash_of(key);
        for (auto walk = index.walk(hash); !walk.is_over(); walk.go_on()) {
          auto const bucket = load_bucket(walk.bucket(), LoadNewest());
          int const slot = bucket.slot_of(key);
          if (slot < 0) {
            if (bucket.has_empty()) return;
            continue;
          }
          RowWord const word = bucket.word(slot);
          // Of threads with the same key one takes it out.
          auto* const at = reinterpret_cast<std::uint32_t*>(&walk.bucket()->words[static_cast<std::size_t>(slot)]);
          auto const before = static_cast<std::uint32_t>(word);
          if (atomicCAS(at, before, static_cast<std::uint32_t>(RowWord::kErased)) != before) return;
          empty_slot(*walk.bucket(), static_cast<std::size_t>(slot), index.stripe_of(hash), *state);
          if (is_pending(word)) {
            atomicSub(&state->num_pending, 1U);
            return;
          }
          give_up_row(*state, lists, row_of(word));
          count_one(&state->statistics.erased);
          return;
        }
      },
      stream, "erase");
  settle_free_rows_async(state_.data(), rows_.free_lists(), stream);
  mirror_.record(state_.data(), 0, stream);
}

/// Erases the keys of some stripes for which `goes(key, word)`, and adds their number to a counter.
template <class Goes>
void CudaTable::erase_if(std::size_t first_stripe, std::size_t end_stripe, Goes goes,
                         std::uint64_t TableStatistics::*counter, cudaStream_t stream) {
  ++generation_;
  rows_.grow_lists();
  for (std::size_t number = first_stripe; number < end_stripe; ++number) {
    auto const& stripe = stripes_[number];
    for_each_async(
        stripe.num_buckets,
        [goes, counter, number = static_cast<std::uint32_t>(number), buckets = stripe.buckets.data(),
         lists = rows_.free_lists(), state = state_.data()] __device__(std::uint64_t i) {
          auto& bucket = buckets[i];
          for (std::size_t slot = 0; slot < WideBucket::kNumSlots; ++slot) {
            RowWord const word = bucket.words[slot];
            if (!is_live(word) || !goes(bucket.key(slot), word)) continue;
            empty_slot(bucket, slot, number, *state);
            if (is_row(word)) {
              give_up_row(*state, lists, row_of(word));
            } else {
              atomicSub(&state->num_pending, 1U);
            }
            count_one(&(state->statistics.*counter));
          }
        },
        stream, "erase_if");
  }
  settle_free_rows_async(state_.data(), rows_.free_lists(), stream);
  mirror_.record(state_.data(), 0, stream);
}

void CudaTable::begin_step(std::uint32_t step, std::uint32_t oldest_in_use) {
  Call const call(*this);
  cudaStream_t const stream = call.stream();
  expect_step(step_, step, oldest_in_use);
  step_ = step;
  oldest_in_use_ = oldest_in_use;
  if (options_.time_to_live > 0) {
    std::size_t const stripe = next_to_expire_++ % stripes_.size();  // One a step, so that no step takes long.
    erase_if(
        stripe, stripe + 1,
        [is_in_use = IsInUse{rows_.view(), oldest_in_use}, step, time_to_live = options_.time_to_live] __device__(
            Key, RowWord word) {
          return is_row(word) && !is_in_use(word) && step - is_in_use.rows.notes(row_of(word)).step > time_to_live;
        },
        &TableStatistics::expired, stream);
  }
  if (options_.eviction != EvictionPolicy::kNone && may_exceed(options_.high_water, 0, stream)) {
    evict_in_order(options_.low_water, stream);
  }
  std::size_t const num_pending = mirror_.known().num_pending + mirror_.num_unknown_keys();
  if (num_pending > options_.max_pending && wait(stream).num_pending > options_.max_pending) {
    erase_if(
        0, stripes_.size(), [] __device__(Key, RowWord word) { return is_pending(word); }, &TableStatistics::forgotten,
        stream);
  }
}

std::size_t CudaTable::evict(std::size_t num_rows) {
  comm::expects(options_.eviction != EvictionPolicy::kNone, "the table has no policy of eviction");
  Call const call(*this);
  return evict_in_order(num_rows, call.stream());
}

template <class Visit>
void CudaTable::for_each_unused(Visit visit, cudaStream_t stream) const {
  for (auto const& stripe : stripes_) {
    for_each_async(
        stripe.num_slots(),
        [visit, is_in_use = IsInUse{rows_.view(), oldest_in_use_},
         buckets = stripe.buckets.data()] __device__(std::uint64_t i) {
          auto const& bucket = buckets[i / WideBucket::kNumSlots];
          std::size_t const slot = i % WideBucket::kNumSlots;
          RowWord const word = bucket.words[slot];
          if (is_row(word) && !is_in_use(word)) visit(bucket.key(slot), is_in_use.rows.notes(row_of(word)));
        },
        stream, "look at rows");
  }
}

std::size_t CudaTable::evict_in_order(std::size_t num_rows, cudaStream_t stream) {
  std::size_t const size = wait(stream).num_rows;
  if (size <= num_rows) return 0;
  IsInUse const is_in_use{rows_.view(), oldest_in_use_};
  auto const policy = options_.eviction;
  Collection const scores(size, stream);
  for_each_unused([policy, scores = scores.view()] __device__(
                      Key, DeviceRowNotes const& notes) { scores.add(score_of(policy, notes)); },
                  stream);
  std::size_t const num_free = scores.size();
  std::size_t const num_evicted = std::min(size - num_rows, num_free);
  if (num_evicted == 0) return 0;
  std::uint64_t const last_score = scores.least(num_evicted - 1, num_free);
  // Of those that have the last score only some go.
  Collection const less(size, stream), equal(size, stream);
  for_each_unused(
      [policy, last_score, less = less.view(), equal = equal.view()] __device__(Key key, DeviceRowNotes const& notes) {
        std::uint64_t const score = score_of(policy, notes);
        if (score < last_score) less.add(score);
        if (score == last_score) equal.add(hash_of(key).low);
      },
      stream);
  std::uint64_t const last_hash = equal.least(num_evicted - less.size() - 1, equal.size());
  erase_if(
      0, stripes_.size(),
      [policy, last_score, last_hash, is_in_use] __device__(Key key, RowWord word) {
        if (!is_row(word) || is_in_use(word)) return false;
        std::uint64_t const score = score_of(policy, is_in_use.rows.notes(row_of(word)));
        return score < last_score || (score == last_score && hash_of(key).low <= last_hash);
      },
      &TableStatistics::evicted, stream);
  return num_evicted;
}

namespace {

struct HalvingArgs {
  RowsView rows;
  FreeLists lists;
  TableState* state;
  WideBucket* buckets;
  std::uint64_t num_slots;
  std::uint32_t step, oldest_in_use, hot_count;
};

// A warp halves the counts of 32 slots, and then moves those rows together that become cold.
__global__ void __launch_bounds__(kBlockThreads) halve_counts_kernel(__grid_constant__ HalvingArgs const args) {
  std::uint64_t const i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  auto& bucket = args.buckets[i / WideBucket::kNumSlots];
  std::size_t const slot = i % WideBucket::kNumSlots;
  RowWord const word = i < args.num_slots ? bucket.words[slot] : RowWord::kEmpty;
  bool becomes_cold = false;
  if (is_pending(word)) bucket.words[slot] = pending_word(pending_count_of(word) / 2);
  if (is_row(word)) {
    auto& notes = args.rows.notes(row_of(word));
    notes.count /= 2;
    becomes_cold = precision_of(row_of(word)) == Precision::kFloat32 && notes.count < args.hot_count &&
                   notes.step < args.oldest_in_use;
  }
  RowId const to = take_row(*args.state, args.lists, becomes_cold, Precision::kBfloat16);
  for (std::uint32_t left = __ballot_sync(kAllLanes, becomes_cold); left != 0; left &= left - 1) {
    int const from = __ffs(static_cast<int>(left)) - 1;
    RowId const before{__shfl_sync(kAllLanes, static_cast<std::uint32_t>(word), from)};
    RowId const after{__shfl_sync(kAllLanes, static_cast<std::uint32_t>(to), from)};
    auto const own = becomes_cold ? bucket.key(slot) : Key{};
    Key const key{.id = __shfl_sync(kAllLanes, own.id, from), .table = __shfl_sync(kAllLanes, own.table, from)};
    copy_row(args.rows, before, after, key, args.step);
  }
  if (!becomes_cold) return;
  bucket.words[slot] = RowWord{static_cast<std::uint32_t>(to)};
  free_row(*args.state, args.lists, row_of(word));
  count_one(&args.state->num_cold);
  count_one(&args.state->statistics.demoted);
}

}  // namespace

void CudaTable::halve_counts() {
  Call const call(*this);
  cudaStream_t const stream = call.stream();
  if (options_.hot_count > 0) {
    auto const& state = wait(stream);
    std::size_t const num_hot = state.num_rows - state.num_cold;
    rows_.grow(Precision::kBfloat16, state.free_rows[1].next + num_hot);
    rows_.grow_lists();
    ++generation_;
  }
  for (auto const& stripe : stripes_) {
    halve_counts_kernel<<<num_blocks(stripe.num_slots()), kBlockThreads, 0, stream>>>(
        {.rows = rows_.view(),
         .lists = rows_.free_lists(),
         .state = state_.data(),
         .buckets = stripe.buckets.data(),
         .num_slots = stripe.num_slots(),
         .step = step_,
         .oldest_in_use = oldest_in_use_,
         .hot_count = options_.hot_count});
    check_launch("halve_counts_kernel");
  }
  settle_free_rows_async(state_.data(), rows_.free_lists(), stream);
  mirror_.record(state_.data(), 0, stream);
}

}  // namespace headway::embedding
