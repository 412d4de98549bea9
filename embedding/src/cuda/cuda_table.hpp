#pragma once

#include "cuda/device_buffer.hpp"
#include "cuda/device_rows.hpp"
#include "cuda/free_rows.cuh"
#include "cuda/index_view.cuh"
#include "cuda/rows_view.cuh"
#include "cuda/state_mirror.hpp"
#include "cuda/table_state.hpp"
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
/// Keys are in 64 stripes as on the CPU, each an open hash table of buckets of four in memory of its own, so that one
/// stripe doubles at a time. Kernels change the key structure without locks, which needs keys that are all different:
/// a batch that may have duplicates is deduplicated first. What kernels count is in TableState; the host sees it late,
/// makes room for the most that may be there by now, and waits for the device only where that does not fit. Where there
/// may be too many rows, kernels find out whether there are, and what goes or is refused.
class CudaTable final : public Table {
 public:
  CudaTable(TableOptions const& options, CudaPlace const& place);
  ~CudaTable() override;

  [[nodiscard]] std::size_t dim() const override { return options_.dim; }
  [[nodiscard]] std::size_t state_size() const override;
  /// Waits for the device; so do statistics(), evict(), and what lists.
  [[nodiscard]] TableSize size() const override;
  [[nodiscard]] TableStatistics statistics() const override;
  [[nodiscard]] std::uint64_t generation() const override { return generation_; }
  void begin_step(std::uint32_t step, std::uint32_t oldest_in_use) override;
  void resume_step(std::uint32_t step, std::uint32_t oldest_in_use) override;
  void find(Keys const& keys, std::span<RowId> rows, std::span<KeyStatus> statuses) const override;
  void find_or_insert(Keys const& keys, std::span<RowId> rows, std::span<KeyStatus> statuses) override;
  void gather(Keys const& keys, std::span<RowId const> rows, std::span<float> out) const override;
  void gather_bags(Keys const& keys, std::span<RowId const> rows, std::span<std::uint32_t const> numbers,
                   Bags const& bags, std::span<float> out) const override;
  void update(Keys const& keys, std::span<RowId const> rows, std::span<float const> gradients,
              kernels::OptimizerStep const& step) override;
  void update_bags(Keys const& keys, std::span<RowId const> rows, Members const& members, Bags const& bags,
                   std::span<float const> gradients, kernels::OptimizerStep const& step) override;
  void insert_or_assign(Keys const& keys, std::span<float const> vectors, std::span<KeyStatus> statuses) override;
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

  // What follows is for the table's own files; nvcc wants functions with kernels in them public, and their types.
  struct Stripe {
    DeviceBuffer<WideBucket> buckets;
    std::size_t num_buckets = 0;

    [[nodiscard]] std::size_t num_slots() const { return num_buckets * WideBucket::kNumSlots; }
  };
  /// One call: has the table for itself on the host, and its place in the order of the caller's stream.
  class Call;
  /// What an insertion does besides.
  struct Rules {
    std::uint32_t otherwise = 1;  ///< Lookups that a key stands for where there are no counts.
    std::uint32_t min_count = 1;  ///< After which a key gets a row.
    bool is_limited = true;       ///< By max_rows.
    bool fills_vectors = true;    ///< Of new rows; else the caller does.
    bool last_holds = false;      ///< Of a key that repeats its last count alone decides on the precision.
  };
  /// Of a batch whose keys are all different, or the unique keys of one; in memory of the device.
  struct Outcome {
    RowId* rows;
    KeyStatus* statuses;
  };
  struct Plan;
  struct LastOfEach;

  [[nodiscard]] IndexView index() const {
    return {.stripes = stripe_views_.data(), .stripe_of_cell = stripe_of_cell_.data()};
  }
  [[nodiscard]] StripeRange stripes(std::size_t first, std::size_t count) const;
  [[nodiscard]] StripeRange all_stripes() const { return stripes(0, stripes_.size()); }
  void make_stripes(cudaStream_t stream);
  void set_stripe(std::size_t number, DeviceBuffer<WideBucket> buckets, std::size_t num_buckets, cudaStream_t stream);

  // Before insertions
  /// Makes room for so many new keys, in the key structure and in rows.
  void prepare(std::size_t num_keys, Rules const& rules, cudaStream_t stream);
  void grow_stripes(std::size_t num_keys, cudaStream_t stream);
  void grow_stripe(std::size_t number, std::size_t num_buckets, cudaStream_t stream);
  void grow_rows(std::size_t num_keys, Rules const& rules, cudaStream_t stream);
  /// Counts of now. @throws comm::UsageError if rows were given that are not of this table
  TableState const& wait(cudaStream_t stream) const;
  [[nodiscard]] std::size_t most_rows(Rules const& rules) const {
    return rules.is_limited ? options_.max_rows : kMostTableRows;
  }
  /// That there may be by now, as far as the host knows without waiting.
  [[nodiscard]] std::size_t num_rows_at_most() const { return mirror_.known().num_rows + mirror_.num_unknown_keys(); }
  [[nodiscard]] std::size_t num_pending_at_most() const {
    return mirror_.known().num_pending + mirror_.num_unknown_keys();
  }

  // Insertions
  void insert(Keys const& keys, Rules const& rules, Outcome const& outcome, cudaStream_t stream);
  /// Where keys may repeat, or there may be no room for all.
  void insert_carefully(Keys const& keys, Rules const& rules, Outcome const& outcome, cudaStream_t stream);
  void insert_unique(KeysView const& keys, Rules const& rules, Plan const* plan, Outcome const& outcome,
                     cudaStream_t stream);
  void refuse_what_has_no_room(Plan& plan, Rules const& rules, cudaStream_t stream);
  [[nodiscard]] LastOfEach last_of_each(Keys const& keys, cudaStream_t stream);
  void write_vectors(Keys const& keys, std::span<RowId const> rows, std::span<float const> vectors,
                     LastOfEach const& is_written, cudaStream_t stream);

  /// Evicts what is not of the batch if there is no room for so many rows. @param num_wanted on the device
  void make_room(Plan const& plan, std::uint32_t const* num_wanted, cudaStream_t stream);

  // Removals
  [[nodiscard]] Expiry expiry() const {
    return {.step = step_, .oldest_in_use = oldest_in_use_, .time_to_live = options_.time_to_live};
  }
  /// Evicts in the order of the policy. @param num_too_many on the device: how many rows
  void evict_async(std::uint32_t const* num_too_many, cudaStream_t stream);
  /// Evicts until `num_left` are left, if there are more than `num_allowed`.
  void evict_async(std::size_t num_allowed, std::size_t num_left, cudaStream_t stream);
  /// Removes the keys of the least scores, and of equal ones those of the lowest hash, in the order of `order`.
  /// @param scores gives kStays for what does not go @param most_scores that there may be
  /// @param num_too_many on the device: how many keys
  template <class Scores>
  void remove_least_async(Scores const& scores, std::size_t most_scores, std::uint32_t const* num_too_many,
                          std::uint64_t TableStatistics::*counter, cudaStream_t stream, std::uint64_t order = 0);
  /// Removes the expired rows of the stripes that this step sweeps.
  void sweep_expired_async(std::uint32_t step_before, cudaStream_t stream);
  /// Removes the expired rows of these keys: lookups find them absent.
  void remove_expired_async(Keys const& keys, cudaStream_t stream);
  void forget_pending_async(cudaStream_t stream);
  /// Erases those of the keys for which `goes(word)`.
  template <class Goes>
  void erase_keys_async(Keys const& keys, Goes goes, std::uint64_t TableStatistics::*counter, cudaStream_t stream);
  template <class Goes>
  void erase_if(StripeRange const& range, Goes goes, std::uint64_t TableStatistics::*counter, cudaStream_t stream);
  struct Listed {
    std::uint64_t id;
    std::uint32_t table, bucket, count;
  };
  template <class Wanted>
  [[nodiscard]] std::vector<Listed> list_if(std::uint32_t first_bucket, std::uint32_t end_bucket, Wanted wanted) const;

 private:
  TableOptions options_;
  kernels::RowOptimizer optimizer_;
  CudaPlace place_;
  mutable std::mutex mutex_;
  mutable cudaStream_t last_stream_ = nullptr;
  cudaEvent_t is_done_ = nullptr;  ///< Of the last stream, when another one comes.
  StripeMap stripe_map_;
  DeviceBuffer<StripeView> stripe_views_;
  DeviceBuffer<std::uint8_t> stripe_of_cell_;
  std::array<Stripe, StripeMap::kCount> stripes_;
  std::array<double, StripeMap::kCount> shares_{};  ///< Of all keys.
  DeviceRows rows_;
  DeviceBuffer<TableState> state_;
  mutable StateMirror mirror_;
  std::unique_ptr<CudaDeduplicator> deduplicator_;
  std::uint32_t step_ = 0, oldest_in_use_ = 0;
  std::uint64_t generation_ = 0;
};

}  // namespace headway::embedding
