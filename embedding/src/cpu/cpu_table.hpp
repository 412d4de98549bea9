#pragma once

#include "cpu/key_index.hpp"
#include "cpu/row_store.hpp"
#include "cpu/segment_pool.hpp"
#include "cpu/stripe_map.hpp"
#include "cpu/striped_batch.hpp"
#include "cpu/worker_pool.hpp"
#include "headway/embedding/table.hpp"

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
  struct Stripe {
    Stripe(SegmentPool& pool, RowStore& store) : index(pool, StripeMap::kHashBits), rows(store) {}
    KeyIndex<WideBucket> index;
    RowAllocator rows;
    std::uint64_t inserted = 0, erased = 0;
  };
  [[nodiscard]] std::vector<Stripe> make_stripes();
  static void expect_one_each(Keys const& keys, std::size_t count, char const* what);
  void expect_vectors(Keys const& keys, std::size_t num_values, char const* what) const;
  /// Calls `visit(i, hash)` for keys from `first` to `end` that are about to be looked up.
  template <class Visit>
  void in_step(Keys const& keys, std::size_t first, std::size_t end, Visit visit) const;
  [[nodiscard]] RowId find_row(Key key, Hash hash) const;
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
  StripeMap stripe_map_;
  std::vector<Stripe> stripes_;
  StripedBatch batch_;
  std::vector<bool> is_refused_;         ///< (keys) Scratch; empty: there is room for all.
  std::vector<std::uint8_t> is_absent_;  ///< (keys) Scratch beside it.
  std::uint64_t num_refused_ = 0;
};

}  // namespace headway::embedding
