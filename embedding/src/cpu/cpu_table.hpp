#pragma once

#include "cpu/eviction_queue.hpp"
#include "cpu/key_index.hpp"
#include "cpu/key_kernels.hpp"
#include "cpu/segment_pool.hpp"
#include "cpu/staged_find.hpp"
#include "cpu/striped_batch.hpp"
#include "cpu/table_rows.hpp"
#include "cpu/worker_pool.hpp"
#include "headway/embedding/table.hpp"
#include "stripe_map.hpp"
#include "table_options.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <span>
#include <utility>
#include <vector>

namespace headway::embedding {

/// The table behind make_cpu_table().
///
/// The highest bits of a key's hash choose one of 64 stripes, each a key structure and an allocator of rows of its own.
/// A call that changes the table first sorts its batch by stripe, keeping the order of the batch in each, and then
/// gives whole stripes to threads: nothing is locked, and the result does not depend on the number of threads. Calls
/// that only read cut the batch into ranges.
class CpuTable final : public Table {
 public:
  explicit CpuTable(TableOptions const& options);

  [[nodiscard]] std::size_t dim() const override { return options_.dim; }
  [[nodiscard]] std::size_t state_size() const override;
  [[nodiscard]] TableSize size() const override;
  [[nodiscard]] TableStatistics statistics() const override;
  [[nodiscard]] std::uint64_t generation() const override;
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

 private:
  struct Stripe {
    Stripe(SegmentPool& pool, TableRows& table_rows, std::size_t scratch_size)
        : index(pool, StripeMap::kHashBits), rows(table_rows), scratch(scratch_size) {}
    KeyIndex<WideBucket> index;
    TableRows::Allocator rows;
    TableStatistics statistics;
    std::size_t num_rows = 0, num_cold = 0, num_pending = 0;
    std::vector<float> scratch;  ///< (dim) Where rows may be cold.
    EvictionQueue queue;
    std::vector<EvictionCandidate> ready;  ///< Scratch: rows that may go now.
  };
  /// What an insertion does besides: how many lookups key `i` stands for, and after how many it gets a row.
  struct Lookups {
    std::span<std::uint32_t const> counts{};
    std::uint32_t otherwise = 1;  ///< Where there are no counts.
    std::uint32_t min_count = 1;
    bool is_limited = true;  ///< By max_rows.

    [[nodiscard]] std::uint32_t count(std::size_t i) const { return counts.empty() ? otherwise : counts[i]; }
  };
  /// How records are imported of which the last of each key holds, on whose count its precision depends.
  struct LastOfEach {
    std::vector<std::uint32_t> counts;  ///< (records) Of lookups: the first of a key has the last one's, others none.
    std::vector<bool> is_last;          ///< (records) Whether it is written.
  };

  [[nodiscard]] std::vector<Stripe> make_stripes();
  void expect_row(RowId row) const;
  class BagMembers;
  /// Null where there is no row, or one of bfloat16. @throws comm::UsageError for a row of no table
  [[nodiscard]] float const* find_vector(RowId row) const;
  /// What key `i` has in its row, or would get.
  void read_or_initialise(Keys const& keys, std::size_t i, RowId row, std::span<float> out) const;
  [[nodiscard]] StripeIndices indices() const {
    return {stripe_map_, [this](std::size_t stripe) { return &stripes_[stripe].index; }};
  }
  /// Calls `visit(i)` for each row from `first` to `end`, whose lines are fetched before, and `miss(i)` where there is
  /// none.
  template <class Visit, class Miss>
  void for_each_row(std::span<RowId const> rows, std::size_t first, std::size_t end, Visit visit, Miss miss) const;
  /// One step of the optimizer with `gradient_of(i, scratch)` of each key.
  template <class GradientOf>
  void learn(Keys const& keys, std::span<RowId const> rows, kernels::OptimizerStep const& step, GradientOf gradient_of);
  /// Calls `visit(stripe, i, hash)` for each key `i` of the sorted batch, one thread a stripe, and some keys earlier
  /// `announce(i)`.
  template <class Announce, class Visit>
  void in_stripes(Announce announce, Visit visit);
  /// Calls `visit(i, row)` for each key `i` of the batch, which is inserted if it is not there, or with kNone; and some
  /// keys earlier `announce(i)`.
  template <class Announce, class Visit>
  void insert(Keys const& keys, Lookups const& lookups, std::span<KeyStatus> statuses, Announce announce, Visit visit);
  /// The same where the lock is held.
  template <class Announce, class Visit>
  void insert_locked(Keys const& keys, Lookups const& lookups, std::span<KeyStatus> statuses, Announce announce,
                     Visit visit);
  /// Finds and counts lookups of a batch whose keys all have rows.
  /// @returns false, with nothing counted, where they have not, or where lookups may do more than count
  [[nodiscard]] bool look_up_known(Keys const& keys, std::span<RowId> rows);
  void count_lookup(RowNotes& notes, std::uint32_t count) const;
  /// Where no row may be cold, counts decide on nothing, and all are written: the last of a key after the others.
  [[nodiscard]] LastOfEach last_of_each(Records const& records);
  /// A row for a key that was looked up `count` times.
  [[nodiscard]] RowWord make_row(Stripe& stripe, Key key, std::uint32_t count);
  /// Counts a lookup of a row that was there, and gives it float32 if it is due.
  void look_up(Stripe& stripe, Key key, RowWord& word, std::uint32_t count);
  /// Sees to it that rows are reserved for what the sorted batch can insert, and says in is_refused_ which of its keys
  /// get none.
  void make_room(Keys const& keys, Lookups const& lookups);
  /// @returns how many rows the sorted batch asks for; is_refused_ has those beyond the `room` first.
  std::size_t plan_insertions(Keys const& keys, Lookups const& lookups, std::size_t room);
  void free_row(Stripe& stripe, RowWord word);
  /// Moves a row to the other precision.
  void change_precision(Stripe& stripe, Key key, RowWord& word);
  [[nodiscard]] bool is_in_use(RowNotes const& notes) const { return notes.step >= oldest_in_use_; }
  [[nodiscard]] bool is_cold(std::uint32_t count) const { return count < options_.hot_count; }
  [[nodiscard]] Expiry expiry() const {
    return {.step = step_, .oldest_in_use = oldest_in_use_, .time_to_live = options_.time_to_live};
  }
  [[nodiscard]] bool is_expired(RowNotes const& notes) const {
    return options_.time_to_live > 0 && expiry()(notes.step);
  }
  /// The order in which rows are evicted, and the rows that stay.
  struct EvictionOrder {
    EvictionPolicy policy;
    std::uint32_t oldest_in_use;
  };
  [[nodiscard]] EvictionOrder eviction_order() const { return {options_.eviction, oldest_in_use_}; }
  /// Evicts the rows of the least scores: by a scan of all rows, or from the queues.
  std::size_t evict_locked(std::size_t num_rows, EvictionOrder const& order);
  /// Evicts rows because there are more than `allowed`, down to `low` as far as a batch lets it.
  void evict_batch(std::size_t num_rows, std::size_t allowed, std::size_t low);

  /// Calls `visit(key, row)` for the rows of the next few buckets, whose notes are fetched before.
  template <class Visit>
  void visit_part(Stripe const& stripe, EvictionQueue::Cursor& cursor, Visit visit) const {
    constexpr std::size_t kBuckets = 64;
    std::array<std::pair<Key, RowId>, kBuckets * WideBucket::kNumSlots> found;
    std::size_t num_found = 0;
    stripe.index.scan(cursor, kBuckets, [&](Key key, RowWord word) {
      if (!is_row(word)) return;
      __builtin_prefetch(&rows_.notes(row_of(word)));
      found[num_found++] = {key, row_of(word)};
    });
    for (std::size_t i = 0; i < num_found; ++i) visit(found[i].first, found[i].second);
  }

  // Eviction from queues
  /// Whether queues may be used: the score of a row must not decrease. By count that of an expired row does, and that
  /// of an imported row whose step is yet to come.
  [[nodiscard]] bool has_queues() const {
    bool const expires_by_count =
        options_.eviction == EvictionPolicy::kLeastFrequentlyUsed && options_.time_to_live > 0;
    return options_.eviction_batch != TableOptions::kUnlimited && options_.eviction != EvictionPolicy::kNone &&
           !expires_by_count && newest_step_ <= step_;
  }
  [[nodiscard]] EvictionScore score_of(Key key, RowNotes const& notes) const;
  void queue_new_row(Stripe& stripe, Key key, RowNotes const& notes) const {
    if (horizon_.next == kLeastScore) return;
    if (auto const score = score_of(key, notes); score < horizon_.next) stripe.queue.wait({score, key});
  }
  void evict_from_queues(std::size_t num_evicted);
  /// Takes entries of all stripes until the `count` least rows that may go are among those that are ready.
  /// @returns the score of the last of them; none: all rows that may go are ready
  [[nodiscard]] std::optional<EvictionScore> ready_least(std::size_t count);
  /// Takes the entries for which `wants(queue)`, and makes those ready that are right and may go.
  template <class Wants>
  void make_ready(Stripe& stripe, Wants wants);
  [[nodiscard]] std::optional<EvictionScore> last_ready(std::size_t count) const;
  /// Scans the part of all rows that is to be done by now.
  void prepare_eviction(std::size_t num_rows);
  void scan_to(double part);
  void scan(Stripe& stripe, double part);
  /// Uses what was scanned, and chooses how far the next scan looks.
  void advance_horizon();
  [[nodiscard]] EvictionScore next_horizon() const;
  /// Forgets what is queued, as scores may have decreased.
  void reset_queues();
  /// Removes the expired rows of keys of the sorted batch: lookups find them absent.
  void remove_expired_of(Keys const& keys);
  /// Removes the expired rows of the stripes that this step sweeps.
  void sweep_expired(std::uint32_t step_before);
  /// Forgets the pending keys of fewest lookups until `num_left` are left.
  void forget_pending(std::size_t num_left);
  template <class Wanted>
  [[nodiscard]] Records list(std::uint32_t first_bucket, std::uint32_t end_bucket, Wanted wanted) const;
  [[nodiscard]] TableSize size_locked() const;

  TableOptions options_;
  KeyKernels const& key_kernels_ = usable_key_kernels().back();
  kernels::VectorKernels const& vector_kernels_ = kernels::fastest_vector_kernels();
  mutable std::shared_mutex mutex_;  ///< Shared by those who read.
  std::shared_ptr<WorkerPool> workers_;
  SegmentPool segments_;
  TableRows rows_;
  StripeMap stripe_map_;
  std::vector<Stripe> stripes_;
  StripedBatch batch_;
  std::vector<bool> is_refused_;  ///< (keys) Scratch; empty: there is room for all.
  std::vector<RowWord> words_;    ///< (keys) Scratch beside it.
  std::uint32_t step_ = 0, oldest_in_use_ = 0;
  std::uint32_t newest_step_ = 0;  ///< Of imported rows.
  EvictionHorizon horizon_;
  std::size_t num_first_ = 0;  ///< Entries when the horizon advanced.
};

}  // namespace headway::embedding
