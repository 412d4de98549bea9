// SPDX-License-Identifier: Apache-2.0

// Calls of a CPU table that may overlap: read(), read_or_insert() and update_keys().
//
// Idea: a call sorts its keys by stripe. It takes the lock of two stripes, handles their keys, and goes on with the
// next lock that is free, so that calls of several threads spread over the stripes. It waits for a lock only if all
// that it still needs are taken. Under a lock keys are taken in groups, with three loops each: prefetch the buckets of
// the index, find the rows and prefetch them, use the rows. So cache misses of a group overlap.
//
// An insertion needs room under max_rows and memory of rows that is reserved. A call promises all its keys at first.
// If they may not fit, or if rows may change their precision or expire, it waits until it is alone and inserts as
// find_or_insert() does. Keys for which the reserved rows were used up are inserted in that way afterwards.
//
// Example: threads A and B look up keys of locks 0, 1, 2. A has 0. B finds it taken and has 1, then 2. A goes on with
// 1. B comes back to 0.
//
// Invariants: a row is read and written under the lock of its stripe. What all stripes share (step, horizon, memory of
//   rows) changes while no other call is under way. A thread holds one lock of a stripe at a time: no deadlock.
//   num_promised_ plus the rows there are is at least the rows there will be when all calls under way have ended.
// Complexity: O(keys * dim), and at most 32 locks for each thread of a call.

#include "cpu/table/cpu_table.hpp"
#include "cpu/table/cpu_table_insertion.hpp"
#include "cpu/table/stripe_locks.hpp"
#include "expect_batch.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <numeric>
#include <shared_mutex>
#include <utility>
#include <vector>

namespace headway::embedding {

namespace {

constexpr std::size_t kGroup = 128;  // Keys whose cache misses overlap. Their buckets and rows fit a level 2 cache.

/// The keys at `positions`, in their order.
struct SelectedKeys {
  SelectedKeys(Keys const& keys, std::span<std::size_t const> positions) : table(keys.table) {
    for (auto const i : positions) {
      ids.push_back(keys.ids[i]);
      if (!keys.tables.empty()) tables.push_back(keys.tables[i]);
      if (!keys.counts.empty()) counts.push_back(keys.counts[i]);
    }
  }
  [[nodiscard]] Keys view() const { return {.ids = ids, .tables = tables, .table = table, .counts = counts}; }

  std::vector<std::uint64_t> ids;
  std::vector<std::uint32_t> tables, counts;
  std::uint32_t table;
};

}  // namespace

/// A StripedBatch for one call. It is kept for later calls, as its arrays cost page faults.
class CpuTable::BorrowedBatch {
 public:
  explicit BorrowedBatch(CpuTable const& table) : table_(table) {
    std::lock_guard const lock(table_.spare_mutex_);
    table_.spare_batches_.reserve(kMostSpareBatches);  // So that the destructor does not fail.
    if (table_.spare_batches_.empty()) {
      batch_ = std::make_unique<StripedBatch>();
    } else {
      batch_ = std::move(table_.spare_batches_.back());
      table_.spare_batches_.pop_back();
    }
  }
  ~BorrowedBatch() {
    std::lock_guard const lock(table_.spare_mutex_);
    if (table_.spare_batches_.size() < kMostSpareBatches) table_.spare_batches_.push_back(std::move(batch_));
  }
  BorrowedBatch(BorrowedBatch const&) = delete;
  BorrowedBatch& operator=(BorrowedBatch const&) = delete;
  [[nodiscard]] StripedBatch* operator->() const { return batch_.get(); }

 private:
  CpuTable const& table_;
  std::unique_ptr<StripedBatch> batch_;
};

template <class Self, class Find, class Use>
void CpuTable::under_locks(Self& self, Keys const& keys, Find find, Use use) {
  BorrowedBatch const batch(self);
  batch->sort(keys, self.stripe_map_, *self.thread_pool_);
  auto const stripe_of = [&](Hash hash) -> auto& { return self.stripes_[self.stripe_map_.of(hash)]; };
  auto const under_lock = [&](std::size_t lock) {
    auto const positions = batch->of_stripes(lock * StripeLocks::kStripes, (lock + 1) * StripeLocks::kStripes);
    std::array<RowId, kGroup> rows;
    for (std::size_t first = 0; first < positions.size(); first += kGroup) {
      auto const group = positions.subspan(first, std::min(kGroup, positions.size() - first));
      for (auto const i : group) stripe_of(batch->hash(i)).index.prefetch(batch->hash(i));
      for (std::size_t j = 0; j < group.size(); ++j) {
        auto const hash = batch->hash(group[j]);
        rows[j] = find(stripe_of(hash), group[j], hash);
        if (rows[j] != RowId::kNone) self.rows_.prefetch(rows[j]);
      }
      for (std::size_t j = 0; j < group.size(); ++j) use(stripe_of(batch->hash(group[j])), group[j], rows[j]);
    }
  };
  std::size_t const num_tasks = keys.size() > base::ThreadPool::kRangeSize
                                    ? std::min<std::size_t>(self.thread_pool_->num_threads(), StripeLocks::kCount)
                                    : 1;
  auto const task = [&](std::size_t number) {
    std::array<std::size_t, StripeLocks::kCount> left;
    std::size_t num_left = 0;
    for (std::size_t lock = number; lock < StripeLocks::kCount; lock += num_tasks) left[num_left++] = lock;
    while (num_left > 0) {
      std::size_t num_busy = 0;
      for (std::size_t j = 0; j < num_left; ++j) {
        std::unique_lock const lock(self.locks_[left[j]], std::try_to_lock);
        lock.owns_lock() ? under_lock(left[j]) : static_cast<void>(left[num_busy++] = left[j]);
      }
      if (num_busy == num_left) {
        std::lock_guard const lock(self.locks_[left[--num_busy]]);
        under_lock(left[num_busy]);
      }
      num_left = num_busy;
    }
  };
  if (num_tasks == 1) {
    task(0);
  } else {
    self.thread_pool_->run(num_tasks, task);
  }
}

void CpuTable::read(Keys const& keys, std::span<float> out, std::span<KeyStatus> statuses) const {
  std::size_t const dim = options_.dim;
  expect_values(keys, out.size(), dim, "out");
  expect_one_each(keys, statuses.empty() ? keys.size() : statuses.size(), "statuses");
  std::shared_lock const together(calls_);
  under_locks(
      *this, keys, [&](Stripe const& stripe, std::size_t i, Hash hash) { return find_live(stripe, keys[i], hash); },
      [&](Stripe const& /*stripe*/, std::size_t i, RowId row) {
        read_or_initialise(keys, i, row, out.subspan(i * dim, dim));
        if (!statuses.empty()) statuses[i] = row == RowId::kNone ? KeyStatus::kAbsent : KeyStatus::kFound;
      });
}

/// New rows that a call may make. While it exists, no other call makes so many that these would not fit.
class CpuTable::Promise {
 public:
  /// The caller shares table.calls_.
  Promise(CpuTable& table, std::size_t num_rows) : table_(table), num_rows_(num_rows) {
    // The sum may count rows of calls under way twice, as rows and as promised. It never misses one: a call that has
    // taken its promise back has made its rows before.
    auto sum = table_.num_promised_.fetch_add(num_rows, std::memory_order_acq_rel) + num_rows;
    if (table_.options_.max_rows == TableOptions::kUnlimited) return;
    for (auto& stripe : table_.stripes_) sum += std::atomic_ref(stripe.num_rows).load(std::memory_order_relaxed);
    fits_ = sum <= table_.options_.max_rows;
  }
  ~Promise() { table_.num_promised_.fetch_sub(num_rows_, std::memory_order_acq_rel); }
  Promise(Promise const&) = delete;
  Promise& operator=(Promise const&) = delete;
  [[nodiscard]] bool fits() const { return fits_; }

 private:
  CpuTable& table_;
  std::size_t num_rows_;
  bool fits_ = true;
};

void CpuTable::read_or_insert(Keys const& keys, std::span<float> out) {
  expect_values(keys, out.size(), options_.dim, "out");
  expect_one_each(keys, keys.counts.empty() ? keys.size() : keys.counts.size(), "counts");
  auto left = insert_beside_others(keys, out);
  if (left.empty()) return;
  std::ranges::sort(left);
  SelectedKeys const some(keys, left);
  std::lock_guard const alone(calls_);
  insert_locked(
      some.view(), {.counts = some.counts, .min_count = options_.min_count}, {}, [](std::size_t) {},
      [&](std::size_t i, RowId row) {
        read_or_initialise(keys, left[i], row, out.subspan(left[i] * options_.dim, options_.dim));
      });
}

std::vector<std::size_t> CpuTable::insert_beside_others(Keys const& keys, std::span<float> out) {
  std::shared_lock const together(calls_);
  std::vector<std::size_t> left;
  Promise const promise(*this, keys.size());
  // With these options a lookup may move a row to another precision or remove it.
  bool const may_change_rows = options_.hot_count > 0 || options_.time_to_live > 0;
  if (may_change_rows || !promise.fits()) {
    left.resize(keys.size());
    std::iota(left.begin(), left.end(), 0);
    return left;
  }
  std::mutex mutex_of_left;  // A call may have several threads.
  Lookups const lookups{.counts = keys.counts, .min_count = options_.min_count};
  under_locks(
      *this, keys,
      [&](Stripe& stripe, std::size_t i, Hash hash) {
        auto const [row, status] = visit_key(stripe, keys[i], hash, lookups, i, false);
        if (status == KeyStatus::kNoRoom) {
          std::lock_guard const lock(mutex_of_left);
          left.push_back(i);
        }
        return row;
      },
      [&](Stripe const& /*stripe*/, std::size_t i, RowId row) {
        read_or_initialise(keys, i, row, out.subspan(i * options_.dim, options_.dim));
      });
  return left;
}

void CpuTable::update_keys(Keys const& keys, std::span<float const> gradients, kernels::OptimizerStep const& step) {
  std::size_t const dim = options_.dim;
  expect_values(keys, gradients.size(), dim, "gradients");
  expect_one_each(keys, keys.size(), "keys");
  auto const common = rows_.step(step);
  std::shared_lock const together(calls_);
  under_locks(
      *this, keys, [&](Stripe const& stripe, std::size_t i, Hash hash) { return find_live(stripe, keys[i], hash); },
      [&](Stripe& stripe, std::size_t i, RowId row) {
        if (row == RowId::kNone) {
          ++stripe.statistics.dropped_gradients;
        } else {
          rows_.update(row, keys[i], common, gradients.subspan(i * dim, dim), stripe.scratch);
        }
      });
}

}  // namespace headway::embedding
