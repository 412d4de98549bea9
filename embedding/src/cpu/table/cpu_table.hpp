// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/deduplication/striped_batch.hpp"
#include "cpu/index/key_index.hpp"
#include "cpu/index/key_kernels.hpp"
#include "cpu/index/segment_pool.hpp"
#include "cpu/index/staged_find.hpp"
#include "cpu/rows/table_rows.hpp"
#include "cpu/table/eviction_queue.hpp"
#include "cpu/table/stripe_locks.hpp"
#include "headway/base/fair_shared_mutex.hpp"
#include "headway/base/thread_pool.hpp"
#include "headway/embedding/concurrent_table.hpp"
#include "saturating_sum.hpp"
#include "stripe_map.hpp"
#include "table_options.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <utility>
#include <vector>

namespace headway::embedding {

/// The table behind make_cpu_table().
///
/// The highest bits of a key's hash choose one of 64 stripes. Each stripe has its own key index and row allocator. A
/// call that changes the table sorts its batch by stripe, stably, and gives whole stripes to threads. So a stripe needs
/// no lock, and the result does not depend on the number of threads. Calls that only read cut the batch into ranges.
///
/// Locks: calls of Table hold `mutex_`, exclusively if they change the table. Calls of ConcurrentTable share `calls_`,
/// and lock the stripes that they use (cpu_table_concurrent.cpp); calls of Table that may overlap with them also hold
/// `calls_`, exclusively. SegmentPool and RowStore have a lock each, taken last.
class CpuTable final : public ConcurrentTable {
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
  void read(Keys const& keys, std::span<float> out, std::span<KeyStatus> statuses) const override;
  void read_or_insert(Keys const& keys, std::span<float> out) override;
  void update_keys(Keys const& keys, std::span<float const> gradients, kernels::OptimizerStep const& step) override;

 private:
  /// Prefetch distances: in buckets of the key index, and in rows.
  static constexpr std::size_t kKeysAhead = StripedBatch::kKeysAhead, kRowsAhead = 8;

  /// A share of the keys, used by one thread at a time.
  struct Stripe {
    Stripe(SegmentPool& pool, TableRows& table_rows, std::size_t scratch_size)
        : index(pool, StripeMap::kHashBits), rows(table_rows), scratch(scratch_size) {}
    KeyIndex<WideBucket> index;
    TableRows::Allocator rows;
    TableStatistics statistics;
    std::size_t num_rows = 0, num_cold = 0, num_pending = 0;
    std::vector<float> scratch;  ///< (dim) Float32 copy of a cold row; empty if hot_count is 0.
    EvictionQueue queue;
    std::vector<EvictionCandidate> ready;  ///< Scratch: rows that may be evicted now.
  };
  /// How an insertion counts: the lookups that key `i` stands for, and the lookups after which it gets a row.
  struct Lookups {
    std::span<std::uint32_t const> counts{};
    std::uint32_t otherwise = 1;  ///< Lookups of each key if `counts` is empty.
    std::uint32_t min_count = 1;
    bool is_limited = true;  ///< Whether max_rows applies; imports may exceed it.

    [[nodiscard]] std::uint32_t count(std::size_t i) const { return counts.empty() ? otherwise : counts[i]; }
  };
  /// Import plan for records with repeated keys: the last record of a key is kept, and its count decides the precision.
  struct LastOfEach {
    std::vector<std::uint32_t> counts;  ///< (records) First record of a key: count of its last one; others 0.
    std::vector<bool> is_last;          ///< (records) Whether the record is written.
  };

  [[nodiscard]] std::vector<Stripe> make_stripes();
  /// @throws base::UsageError unless `row` is a row of this table
  void expect_row(RowId row) const;
  class BagReader;
  /// The embedding of a float32 row; null for kNone or a bfloat16 row.
  /// @throws base::UsageError unless `row` is kNone or a row of this table
  [[nodiscard]] float const* find_embedding(RowId row) const;
  /// Writes the embedding of key `i`: that of `row`, or the initial one if `row` is kNone.
  void read_or_initialise(Keys const& keys, std::size_t i, RowId row, std::span<float> out) const;
  [[nodiscard]] StripeIndices indices() const {
    return {stripe_map_, [this](std::size_t stripe) { return &stripes_[stripe].index; }};
  }
  /// Calls `visit(i)` for each i in [first, end), or `miss(i)` if rows[i] is kNone. Prefetches the rows ahead.
  template <class Visit, class Miss>
  void for_each_row(std::span<RowId const> rows, std::size_t first, std::size_t end, Visit visit, Miss miss) const;
  /// One optimizer step for each row, with the gradient `gradient_of(i, scratch)`. Keys without a row are counted.
  template <class GradientOf>
  void apply_gradients(Keys const& keys, std::span<RowId const> rows, kernels::OptimizerStep const& step,
                       GradientOf gradient_of);
  /// Calls `visit(stripe, i, hash)` for each key `i` of the sorted batch, each stripe on one thread. Calls
  /// `announce(i)` kRowsAhead keys earlier, to prefetch.
  template <class Announce, class Visit>
  void in_stripes(Announce announce, Visit visit);
  /// Inserts the absent keys of the batch, then calls `visit(i, row)` for each key `i`; row is kNone if it got none.
  /// Calls `announce(i)` some keys earlier, to prefetch.
  template <class Announce, class Visit>
  void insert(Keys const& keys, Lookups const& lookups, std::span<KeyStatus> statuses, Announce announce, Visit visit);
  /// insert() for a caller that holds `mutex_` exclusively.
  template <class Announce, class Visit>
  void insert_locked(Keys const& keys, Lookups const& lookups, std::span<KeyStatus> statuses, Announce announce,
                     Visit visit);
  /// Fast path of find_or_insert(): finds and counts a batch if all its keys have rows.
  /// @returns false, with nothing counted, if a key has no row, or if lookups may change precisions or remove rows
  [[nodiscard]] bool look_up_known(Keys const& keys, std::span<RowId> rows);
  /// Adds `count` lookups in the present step. Threads may count the same row at the same time.
  void count_lookup(RowMetadata& metadata, std::uint32_t count) const;
  /// The same for a row that no other thread uses.
  void count_alone(RowMetadata& metadata, std::uint32_t count) const {
    metadata.count = saturating_sum(metadata.count, count);
    metadata.step = step_;
  }
  /// Import plan of a batch. If no row can be cold, counts decide nothing: all records are written in order.
  [[nodiscard]] LastOfEach last_of_each(Records const& records);
  /// Row of a key after an insertion, and how it got it.
  struct Visited {
    RowId row;
    KeyStatus status;
  };
  /// Inserts or counts key `i` of a batch.
  /// @param is_refused the key gets no row if it has none
  /// @returns status kNoRoom without any change if the reserved rows are used up
  Visited visit_key(Stripe& stripe, Key key, Hash hash, Lookups const& lookups, std::size_t i, bool is_refused);
  /// Allocates and initialises the row of a key that was looked up `count` times.
  /// @returns kEmpty if the reserved rows are used up
  [[nodiscard]] RowWord make_row(Stripe& stripe, Key key, std::uint32_t count);
  /// Counts a lookup of an existing row, and promotes it to float32 if it is due.
  void look_up(Stripe& stripe, Key key, RowWord& word, std::uint32_t count);
  /// Reserves memory for the rows that the sorted batch can insert, evicting if needed. Sets is_refused_ for keys that
  /// get no row.
  void make_room(Keys const& keys, Lookups const& lookups);
  /// Gives the first `room` rows to new keys in the order of the batch, and marks the other ones in is_refused_.
  /// @returns the number of rows that the batch asks for
  std::size_t plan_insertions(Keys const& keys, Lookups const& lookups, std::size_t room);
  void free_row(Stripe& stripe, RowWord word);
  /// Adds to the rows of a stripe. Its lock guards them, but promise() reads those of all stripes without locks.
  static void add_rows(Stripe& stripe, std::ptrdiff_t count) {
    std::atomic_ref const rows(stripe.num_rows);
    rows.store(rows.load(std::memory_order_relaxed) + static_cast<std::size_t>(count), std::memory_order_relaxed);
  }
  /// Moves a row to the other precision.
  void change_precision(Stripe& stripe, Key key, RowWord& word);
  [[nodiscard]] bool is_in_use(RowMetadata const& metadata) const { return metadata.step >= oldest_in_use_; }
  [[nodiscard]] bool is_cold(std::uint32_t count) const { return count < options_.hot_count; }
  [[nodiscard]] Expiry expiry() const {
    return {.step = step_, .oldest_in_use = oldest_in_use_, .time_to_live = options_.time_to_live};
  }
  [[nodiscard]] bool is_expired(RowMetadata const& metadata) const {
    return options_.time_to_live > 0 && expiry()(metadata.step);
  }
  /// The order in which rows are evicted, and the rows that stay.
  struct EvictionOrder {
    EvictionPolicy policy;
    std::uint32_t oldest_in_use;
  };
  [[nodiscard]] EvictionOrder eviction_order() const { return {options_.eviction, oldest_in_use_}; }
  /// Evicts the rows of the least scores until `num_rows` are left, by a scan of all rows.
  std::size_t evict_locked(std::size_t num_rows, EvictionOrder const& order);
  /// Evicts because there are more than `allowed` rows: down to `low`, within eviction_batch (rows_left()). Uses the
  /// queues if they may be used.
  void evict_batch(std::size_t num_rows, std::size_t allowed, std::size_t low);

  /// Calls `visit(key, row)` for the rows of the next 64 buckets, after prefetching their metadata.
  template <class Visit>
  void visit_part(Stripe const& stripe, EvictionQueue::Cursor& cursor, Visit visit) const {
    constexpr std::size_t kBuckets = 64;
    std::array<std::pair<Key, RowId>, kBuckets * WideBucket::kNumSlots> found;
    std::size_t num_found = 0;
    stripe.index.scan(cursor, kBuckets, [&](Key key, RowWord word) {
      if (!is_row(word)) return;
      __builtin_prefetch(&rows_.metadata(row_of(word)));
      found[num_found++] = {key, row_of(word)};
    });
    for (std::size_t i = 0; i < num_found; ++i) visit(found[i].first, found[i].second);
  }

  // Eviction from queues. eviction_queue.hpp explains queues, scan and horizon.
  /// Whether queues may be used: they need scores that never decrease. Two cases break this: with LFU the score of a
  /// row drops when it expires, and an imported row may have a step that is still to come.
  [[nodiscard]] bool has_queues() const {
    bool const expires_by_count =
        options_.eviction == EvictionPolicy::kLeastFrequentlyUsed && options_.time_to_live > 0;
    return options_.eviction_batch != TableOptions::kUnlimited && options_.eviction != EvictionPolicy::kNone &&
           !expires_by_count && newest_step_ <= step_;
  }
  [[nodiscard]] EvictionScore score_of(Key key, RowMetadata const& metadata) const;
  /// Queues a new row if its score is below the horizon. It waits first, as it is in use.
  void queue_new_row(Stripe& stripe, Key key, RowMetadata const& metadata) const {
    if (horizon_.next == kLeastScore) return;
    if (auto const score = score_of(key, metadata); score < horizon_.next) stripe.queue.wait({score, key});
  }
  void evict_from_queues(std::size_t num_evicted);
  /// Takes entries of all stripes until `ready` has the `count` rows of least scores that are not in use.
  /// @returns the score of the last of them; nullopt if fewer rows may be evicted: all of those are in `ready` then
  [[nodiscard]] std::optional<EvictionScore> ready_least(std::size_t count);
  /// Takes entries while `wants(queue)`. An entry whose score is up to date and whose row is not in use goes to
  /// `ready`.
  template <class Wants>
  void make_ready(Stripe& stripe, Wants wants);
  /// Score number `count`, from the least, of all rows in `ready`; nullopt if there are fewer.
  [[nodiscard]] std::optional<EvictionScore> last_ready(std::size_t count) const;
  /// Continues the scan of all rows as far as it should be by now, so that the next queues are full in time.
  void prepare_eviction(std::size_t num_rows);
  /// Scans each stripe up to the fraction `part` of its buckets, in [0, 1].
  void scan_to(double part);
  void scan(Stripe& stripe, double part);
  /// Makes `next` the queues that are used, and chooses the next horizon.
  void advance_horizon();
  /// Estimates, from a sample, the score below which another quarter of the rows lies.
  [[nodiscard]] EvictionScore next_horizon() const;
  /// Empties all queues. Needed when scores may have decreased.
  void reset_queues();
  /// Removes the expired rows of the sorted batch's keys, so that lookups find them absent.
  void remove_expired_of(Keys const& keys);
  /// Removes the expired rows of the stripes that this step sweeps.
  void sweep_expired(std::uint32_t step_before);
  /// Forgets the pending keys of fewest lookups until `num_left` are left.
  void forget_pending(std::size_t num_left);
  /// Lists the keys of a range of buckets for whose word `wanted(word)` holds.
  template <class Wanted>
  [[nodiscard]] Records list(std::uint32_t first_bucket, std::uint32_t end_bucket, Wanted wanted) const;
  /// size() and statistics() for a caller that holds the locks.
  [[nodiscard]] TableSize size_locked() const;
  [[nodiscard]] TableStatistics statistics_locked() const;

  // Calls that may overlap; cpu_table_concurrent.cpp explains them.
  struct SortedKeys;
  class BorrowedKeys;
  static constexpr std::size_t kMostSpareKeys = 16;
  /// Row of a word; kNone if it has none, or an expired one.
  [[nodiscard]] RowId live_row_of(RowWord word) const {
    RowId const row = row_of(word);
    return row != RowId::kNone && is_expired(rows_.metadata(row)) ? RowId::kNone : row;
  }
  /// Calls `use(stripe, i, word, find(stripe, i, word))` for each key `i`, under the lock of its stripe.
  /// `word` is that of the key, or was before `find` inserted others of its group.
  template <class Self, class Find, class Use>
  static void under_locks(Self& self, Keys const& keys, Find find, Use use);
  class Promise;
  /// read_or_insert() beside other calls. @returns positions of the keys that it could not insert, in no order
  [[nodiscard]] std::vector<std::size_t> insert_beside_others(Keys const& keys, std::span<float> out);

  TableOptions options_;
  KeyKernels const& key_kernels_ = usable_key_kernels().back();
  kernels::VectorKernels const& vector_kernels_ = kernels::fastest_vector_kernels();
  mutable std::shared_mutex mutex_;  ///< Exclusive for calls that change the table, shared for readers.
  std::shared_ptr<base::ThreadPool> thread_pool_;
  SegmentPool segments_;
  TableRows rows_;
  StripeMap stripe_map_;
  std::vector<Stripe> stripes_;
  StripedBatch batch_;
  std::vector<bool> is_refused_;  ///< (keys) Scratch: whether the key gets no row; empty if all keys fit.
  std::vector<RowWord> words_;    ///< (keys) Scratch: words of the keys before the insertion.
  /// Present step. Rows looked up in step oldest_in_use_ or later are in use.
  std::uint32_t step_ = 0, oldest_in_use_ = 0;
  std::uint32_t newest_step_ = 0;        ///< Newest step of an imported row.
  EvictionHorizon horizon_;              ///< Rows with a score below it are queued.
  mutable base::FairSharedMutex calls_;  ///< Shared by calls that may overlap.
  mutable StripeLocks locks_;
  std::atomic<std::size_t> num_promised_ = 0;  ///< Keys that calls under way may insert.
  mutable std::mutex spare_mutex_;             ///< Guards spare_keys_.
  mutable std::vector<std::shared_ptr<SortedKeys>> spare_keys_;
  std::size_t num_first_ = 0;  ///< Entries of all queues in use (EvictionQueue::size()) when the horizon advanced.
};

template <class Announce, class Visit>
void CpuTable::in_stripes(Announce announce, Visit visit) {
  batch_.for_each_stripe(*thread_pool_, [&](std::size_t index) {
    auto& stripe = stripes_[index];
    auto const keys = batch_.of_stripe(index);
    for (std::size_t j = 0; j < keys.size(); ++j) {
      if (j + kKeysAhead < keys.size()) stripe.index.prefetch(batch_.hash(keys[j + kKeysAhead]));
      if (j + kRowsAhead < keys.size()) announce(keys[j + kRowsAhead]);
      visit(stripe, keys[j], batch_.hash(keys[j]));
    }
  });
}

}  // namespace headway::embedding
