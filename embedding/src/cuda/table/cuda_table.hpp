// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/index/index_view.cuh"
#include "cuda/rows/device_rows.hpp"
#include "cuda/rows/free_rows.cuh"
#include "cuda/rows/rows_view.cuh"
#include "cuda/runtime/device_buffer.hpp"
#include "cuda/state/state_mirror.hpp"
#include "cuda/state/table_state.hpp"
#include "headway/base/cuda_check.hpp"
#include "headway/embedding/cuda_deduplicator.hpp"
#include "headway/embedding/cuda_place.hpp"
#include "headway/embedding/table.hpp"
#include "stripe_map.hpp"
#include "table_options.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace headway::embedding {

/// The table behind make_cuda_table().
///
/// Key index: 64 stripes as on the CPU, each an open hash table in memory of its own, so that one stripe grows at a
/// time (index_view.cuh, cuda_table_growth.cu). Kernels insert without locks, which needs batches without duplicates:
/// a batch that may have some is deduplicated first. Kernels count in TableState. The host sees these counts late
/// (StateMirror), makes room for the most that there may be by now, and waits for the device only if that does not fit.
/// If there may be too many rows, kernels find out whether there are, and which keys to evict or refuse.
/// Words: a pending key has no row yet, as it had fewer than min_count lookups. A cold row had fewer than hot_count
/// lookups: its embedding is bfloat16, that of a hot row float32. A step is the number given to begin_step(). Above
/// high_water rows, begin_step() evicts down to low_water.
/// Threads: `mutex_` serialises the host side of all calls; Call orders their kernels across streams.
class CudaTable final : public Table {
 public:
  CudaTable(TableOptions const& options, CudaPlace const& place);
  ~CudaTable() override;

  [[nodiscard]] std::size_t dim() const override { return options_.dim; }
  [[nodiscard]] std::size_t state_size() const override;
  /// Waits for the device. So do statistics(), evict(), evict_beyond_limit(), clear(), list(), list_pending(), exports
  /// and imports, and halve_counts() if there is a hot_count.
  [[nodiscard]] TableSize size() const override;
  [[nodiscard]] TableStatistics statistics() const override;
  [[nodiscard]] std::uint64_t generation() const override { return generation_; }
  void begin_step(std::uint32_t step, std::uint32_t oldest_in_use) override;
  void resume_step(std::uint32_t step, std::uint32_t oldest_in_use) override;
  void find(Keys const& keys, std::span<RowId> rows, std::span<KeyStatus> statuses) const override;
  void find_or_insert(Keys const& keys, std::span<RowId> rows, std::span<KeyStatus> statuses) override;
  void gather(Keys const& keys, std::span<RowId const> rows, std::span<float> out) const override;
  void gather_bags(Keys const& keys, std::span<RowId const> rows, std::span<std::uint32_t const> inverse_indices,
                   Bags const& bags, std::span<float> out) const override;
  void update(Keys const& keys, std::span<RowId const> rows, std::span<float const> gradients,
              kernels::OptimizerStep const& step) override;
  void update_bags(Keys const& keys, std::span<RowId const> rows, CsrMap const& csr, Bags const& bags,
                   std::span<float const> gradients, kernels::OptimizerStep const& step) override;
  void insert_or_assign(Keys const& keys, std::span<float const> embeddings, std::span<KeyStatus> statuses) override;
  void erase(Keys const& keys) override;
  std::size_t evict(std::size_t num_rows) override;
  void halve_counts() override;
  void clear() override;
  [[nodiscard]] Records list(std::uint32_t first_bucket, std::uint32_t end_bucket) const override;
  [[nodiscard]] Records list_pending(std::uint32_t first_bucket, std::uint32_t end_bucket) const override;
  [[nodiscard]] Records export_records(Keys const& keys) const override;
  void import_records(Records const& records, std::span<KeyStatus> statuses) override;
  void import_pending(Records const& records) override;
  std::size_t evict_beyond_limit() override;

  // The members below are for the table's own files. They are public because nvcc requires that of functions with
  // extended lambdas, and of the types in them.

  /// Host side of one stripe of the key index.
  struct Stripe {
    DeviceBuffer<WideBucket> buckets;
    std::size_t num_buckets = 0;

    [[nodiscard]] std::size_t num_slots() const { return num_buckets * WideBucket::kNumSlots; }
  };
  /// Scope of one call: holds `mutex_`, sets the device, and orders the caller's stream after earlier calls.
  class Call;
  /// Differences between find_or_insert(), insert_or_assign() and import_records().
  struct Rules {
    std::uint32_t default_count = 1;  ///< Lookups per key if the batch has no counts.
    std::uint32_t min_count = 1;      ///< Lookups after which a key gets a row.
    bool is_limited = true;           ///< max_rows applies.
    bool fills_embeddings = true;  ///< New rows get their initial embedding; false: the caller writes the embeddings.
    bool last_holds = false;  ///< If a key repeats, only the count of its last occurrence decides on the precision.
  };
  /// Results of an insertion, one per key, in device memory.
  struct Outcome {
    RowId* rows;
    KeyStatus* statuses;
  };
  struct Plan;        ///< In cuda_table_insertion.cu.
  struct LastOfEach;  ///< In cuda_table_insertion.cu.

  [[nodiscard]] IndexView index() const {
    return {.stripes = stripe_views_.data(), .stripe_of_cell = stripe_of_cell_.data()};
  }
  /// Stripes first to first + count - 1.
  [[nodiscard]] StripeRange stripes(std::size_t first, std::size_t count) const;
  [[nodiscard]] StripeRange all_stripes() const { return stripes(0, stripes_.size()); }
  /// Gives every stripe an empty array of the smallest size.
  void make_stripes(cudaStream_t stream);
  /// Makes `buckets` the array of a stripe, for kernels enqueued from now on.
  void set_stripe(std::size_t index, DeviceBuffer<WideBucket> buckets, std::size_t num_buckets, cudaStream_t stream);

  // Before insertions
  /// Makes room for up to `num_keys` new keys, in the key index and in the row store.
  void prepare(std::size_t num_keys, Rules const& rules, cudaStream_t stream);
  /// Grows the stripes that `num_keys` new keys may overfill. Waits for the device if one seems to be full.
  void grow_stripes(std::size_t num_keys, cudaStream_t stream);
  /// Re-inserts a stripe into a new array of `num_buckets` buckets. Erased slots disappear.
  void grow_stripe(std::size_t index, std::size_t num_buckets, cudaStream_t stream);
  /// Maps memory for `num_keys` new rows of each precision in use, but not beyond the row limit.
  void grow_rows(std::size_t num_keys, Rules const& rules, cudaStream_t stream);
  /// Exact counts: waits for the stream. @throws base::UsageError if a caller passed rows that are not of this table
  TableState const& wait(cudaStream_t stream) const;
  [[nodiscard]] std::size_t most_rows(Rules const& rules) const {
    return rules.is_limited ? options_.max_rows : kMostTableRows;
  }
  /// Upper bounds that the host knows without waiting.
  [[nodiscard]] std::size_t num_rows_at_most() const { return mirror_.known().num_rows + mirror_.num_unknown_keys(); }
  [[nodiscard]] std::size_t num_pending_at_most() const {
    return mirror_.known().num_pending + mirror_.num_unknown_keys();
  }

  // Insertions
  /// Inserts a batch: removes expired rows of its keys, makes room, then takes the direct or the planned path.
  void insert(Keys const& keys, Rules const& rules, Outcome const& outcome, cudaStream_t stream);
  /// Plans the batch first: for batches that may have duplicates or may not fit below the row limit.
  void insert_carefully(Keys const& keys, Rules const& rules, Outcome const& outcome, cudaStream_t stream);
  /// Launches the insertion kernels on keys without duplicates. @param plan nullptr: each key decides on its own
  void insert_unique(KeysView const& keys, Rules const& rules, Plan const* plan, Outcome const& outcome,
                     cudaStream_t stream);
  /// Evicts for the planned keys if necessary, and marks those that still have no room.
  void refuse_what_has_no_room(Plan& plan, Rules const& rules, cudaStream_t stream);
  /// Finds the last occurrence of each key of a batch.
  [[nodiscard]] LastOfEach last_of_each(Keys const& keys, cudaStream_t stream);
  /// Writes the embeddings of the keys for which `is_written(i)`; keys without a row are skipped.
  /// @param embeddings (keys, dim)
  void write_embeddings(Keys const& keys, std::span<RowId const> rows, std::span<float const> embeddings,
                        LastOfEach const& is_written, cudaStream_t stream);

  /// Evicts rows that are not of the batch if there is no room for `*num_wanted` more rows.
  /// @param num_wanted in device memory
  void make_room(Plan const& plan, std::uint32_t const* num_wanted, cudaStream_t stream);

  // Removals
  [[nodiscard]] Expiry expiry() const {
    return {.step = step_, .oldest_in_use = oldest_in_use_, .time_to_live = options_.time_to_live};
  }
  /// Evicts `*num_too_many` rows in the order of the policy. @param num_too_many in device memory
  void evict_async(std::uint32_t const* num_too_many, cudaStream_t stream);
  /// If there are more than `num_allowed` rows, evicts down to `num_left`, within eviction_batch (rows_left()).
  void evict_async(std::size_t num_allowed, std::size_t num_left, cudaStream_t stream);
  /// Eviction of begin_step(): as a whole, or from the next part of a large table (cuda_table_eviction.cu).
  /// @param may_be_too_many there may be more than high_water rows
  void evict_in_step_async(bool may_be_too_many, cudaStream_t stream);
  /// Evicts the surplus of one part over its share of low_water, within eviction_batch.
  /// The device decides whether there are too many rows.
  void evict_part_async(std::size_t part, cudaStream_t stream);
  /// Removes `*num_too_many` keys of least score from some stripes; ties go to the lowest hash ^ order.
  /// @param scores maps the word of a slot to its score, or to kStays for keys that must not go
  /// @param most_scores upper bound for the keys that have a score
  /// @param num_too_many in device memory
  /// @param counter statistic that counts the removed keys
  template <class Scores>
  void remove_least_async(StripeRange const& range, Scores const& scores, std::size_t most_scores,
                          std::uint32_t const* num_too_many, std::uint64_t TableStatistics::*counter,
                          cudaStream_t stream, std::uint64_t order = 0);
  /// Removes the expired rows of the stripes that this step sweeps.
  void sweep_expired_async(std::uint32_t step_before, cudaStream_t stream);
  /// Removes the expired rows of these keys, so that an insertion finds the keys absent.
  void remove_expired_async(Keys const& keys, cudaStream_t stream);
  /// Removes pending keys of fewest lookups if there are more than max_pending.
  void forget_pending_async(cudaStream_t stream);
  /// Erases the given keys for which `goes(word)`.
  template <class Goes>
  void erase_keys_async(Keys const& keys, Goes goes, std::uint64_t TableStatistics::*counter, cudaStream_t stream);
  /// Erases all keys of some stripes for which `goes(key, word)` (erasure.cuh).
  template <class Goes>
  void erase_if(StripeRange const& range, Goes goes, std::uint64_t TableStatistics::*counter, cudaStream_t stream);
  /// A listed key. `bucket`: virtual bucket; `count`: lookups of a pending key, else 0.
  struct Listed {
    std::uint64_t id;
    std::uint32_t table, bucket, count;
  };
  /// Lists the keys of virtual buckets for which `wanted(word)`, sorted by bucket, table and id. Waits.
  template <class Wanted>
  [[nodiscard]] std::vector<Listed> list_if(std::uint32_t first_bucket, std::uint32_t end_bucket, Wanted wanted) const;

 private:
  TableOptions options_;
  kernels::RowOptimizer optimizer_;
  CudaPlace place_;
  mutable std::mutex mutex_;  ///< Held by a Call while it enqueues kernels.
  // The mutex orders host threads only. Work on the device is ordered by streams: two calls on one stream run in
  // order by themselves, and a call on another stream waits for `is_done_`, recorded behind the last call.
  mutable cudaStream_t last_stream_ = nullptr;  ///< Stream of the last call.
  cudaEvent_t is_done_ = nullptr;               ///< Orders the next stream after `last_stream_`.
  // Key index. `stripes_` owns the arrays; `stripe_views_` holds their addresses for kernels, in device memory. It is
  // written only by kernels (set_stripe()), so kernels that are already enqueued keep seeing the old array.
  StripeMap stripe_map_;
  DeviceBuffer<StripeView> stripe_views_;
  DeviceBuffer<std::uint8_t> stripe_of_cell_;
  std::array<Stripe, StripeMap::kCount> stripes_;
  std::array<double, StripeMap::kCount> shares_{};  ///< Share of all keys that falls into each stripe.
  // Rows, the counters of kernels, and a late copy of these counters for the host (state_mirror.hpp).
  DeviceRows rows_;
  DeviceBuffer<TableState> state_;
  mutable StateMirror mirror_;
  std::unique_ptr<CudaDeduplicator> deduplicator_;
  // Arguments of the last begin_step(). Rows looked up in step `oldest_in_use_` or later must not be evicted: a
  // backward pass that has yet to come holds their ids.
  std::uint32_t step_ = 0, oldest_in_use_ = 0;
  // Eviction in parts: the part that comes next, and how many parts TableState::num_parts_left may ask for at most.
  std::size_t next_part_ = 0, num_parts_left_ = 0;
  bool has_imported_ = false;     ///< Rows of an import may still exceed max_rows.
  std::uint64_t generation_ = 0;  ///< See Table::generation(): changes when a row may have been removed or moved.
};

/// Scope of one call to a CudaTable: locks its mutex, makes its device current, and takes the caller's stream. If the
/// last call used another stream, this one waits for it (on the device).
class CudaTable::Call {
 public:
  explicit Call(CudaTable const& table)
      : lock_(table.mutex_), device_(table.place_.device), stream_(table.place_.stream()) {
    if (stream_ == table.last_stream_) return;
    base::check_cuda(cudaEventRecord(table.is_done_, table.last_stream_), "cudaEventRecord");
    base::check_cuda(cudaStreamWaitEvent(stream_, table.is_done_), "cudaStreamWaitEvent");
    table.last_stream_ = stream_;
  }
  [[nodiscard]] cudaStream_t stream() const { return stream_; }

 private:
  std::lock_guard<std::mutex> lock_;
  base::DeviceScope device_;
  cudaStream_t stream_;
};

}  // namespace headway::embedding
