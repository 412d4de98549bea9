#pragma once

#include "cpu/key_index.hpp"
#include "cpu/row_store.hpp"
#include "cpu/segment_pool.hpp"
#include "cpu/worker_pool.hpp"
#include "headway/embedding/table.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <shared_mutex>
#include <span>
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
  [[nodiscard]] std::size_t size() const override;
  [[nodiscard]] TableStatistics statistics() const override;
  void find(Keys const& keys, std::span<RowId> rows, std::span<KeyStatus> statuses) const override;
  void find_or_insert(Keys const& keys, std::span<RowId> rows, std::span<KeyStatus> statuses) override;
  void gather(Keys const& keys, std::span<RowId const> rows, std::span<float> out) const override;
  void insert_or_assign(Keys const& keys, std::span<float const> vectors, std::span<KeyStatus> statuses) override;
  void erase(Keys const& keys) override;
  void clear() override;

 private:
  static constexpr std::size_t kNumStripes = 64;
  /// So many bits of a hash choose the stripe, in cells of which some have more and some fewer.
  static constexpr int kCellBits = 12;
  static constexpr std::size_t kNumCells = std::size_t{1} << kCellBits;

  struct Stripe {
    Stripe(SegmentPool& pool, RowStore& store) : index(pool, kCellBits), rows(store) {}
    KeyIndex<WideBucket> index;
    RowAllocator rows;
    std::uint64_t inserted = 0, erased = 0;
  };
  /// Which keys of a batch belong to which stripe, in the order of the batch.
  struct SortedBatch {
    std::vector<Hash> hashes;         ///< (keys)
    std::vector<std::size_t> order;   ///< (keys) Their numbers, stripe by stripe.
    std::vector<std::size_t> begins;  ///< (kNumStripes + 1) In `order`.
    std::vector<std::size_t> ends;    ///< (ranges, kNumStripes) Scratch: where a range's next key of a stripe goes.
  };

  [[nodiscard]] std::size_t stripe_of(Hash hash) const { return stripe_of_cell_[hash.low >> (64 - kCellBits)]; }
  static void expect_one_each(Keys const& keys, std::size_t count, char const* what);
  [[nodiscard]] static std::size_t num_ranges(std::size_t count);
  /// Calls `visit(range, first, end)` for ranges that cover [0, count), on all threads.
  template <class Visit>
  void in_ranges(std::size_t count, Visit visit) const;
  /// Calls `visit(i, hash)` for keys from `first` to `end` that are about to be looked up.
  template <class Visit>
  void in_step(Keys const& keys, std::size_t first, std::size_t end, Visit visit) const;
  [[nodiscard]] RowId find_row(Key key, Hash hash) const;
  void sort(Keys const& keys);
  /// Calls `visit(stripe, i, hash)` for each key `i` of the sorted batch, one thread a stripe, and some keys earlier
  /// `announce(i)`.
  template <class Announce, class Visit>
  void in_stripes(Announce announce, Visit visit);
  /// Calls `visit(i, row)` for each key `i` of the batch, which is inserted if it is not there, or with kNone; and some
  /// keys earlier `announce(i)`.
  template <class Announce, class Visit>
  void insert(Keys const& keys, std::span<KeyStatus> statuses, Announce announce, Visit visit);
  /// Says in is_refused_ which keys of the sorted batch are beyond the `room` first that are new.
  void refuse_what_does_not_fit(Keys const& keys, std::size_t room);
  [[nodiscard]] float* vector_of(RowId row) const { return reinterpret_cast<float*>(store_.row(row)); }
  [[nodiscard]] std::size_t count_keys() const;

  TableOptions options_;
  mutable std::shared_mutex mutex_;  ///< Shared by those who read.
  mutable WorkerPool workers_;
  SegmentPool segments_;
  RowStore store_;
  std::array<std::uint8_t, kNumCells> stripe_of_cell_;
  std::vector<Stripe> stripes_;
  SortedBatch batch_;
  std::vector<bool> is_refused_;  ///< (keys) Scratch; empty: there is room for all.
  std::uint64_t num_refused_ = 0;
};

}  // namespace headway::embedding
