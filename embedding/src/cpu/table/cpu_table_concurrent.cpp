// SPDX-License-Identifier: Apache-2.0

// Calls of a CPU table that may overlap: read(), read_or_insert() and update_keys().
//
// Idea: a call sorts its keys by stripe. It takes up to 8 adjacent locks that are free, each of two stripes, handles
// their keys, and goes on with the next locks that are free, so that calls of several threads spread over the stripes.
// It waits for a lock only if all that it still needs are taken, and it has none then. Under locks keys are taken in
// groups: their words are found together (staged_find.hpp), then each row is used while the next ones and the buckets
// of the next group are prefetched. So with more keys under locks, fewer groups begin with cache misses.
//
// An insertion needs room under max_rows and memory of rows that is reserved. A call promises all its keys at first.
// If they may not fit, or if rows may change their precision or expire, it waits until it is alone and inserts as
// find_or_insert() does. Keys for which the reserved rows were used up are inserted in that way afterwards.
//
// Example: threads A and B look up keys of locks 0 to 31. A has 0 to 7. B finds 0 to 7 taken and has 8 to 15. A goes
// on with 16 to 23, since B has those before. B comes back to 0 at the end.
//
// Invariants: a row is read and written under the lock of its stripe. What all stripes share (step, horizon, memory of
//   rows) changes while no other call is under way. A thread that has a lock of a stripe takes others only without
//   waiting: no deadlock. num_promised_ plus the rows there are is at least the rows there will be when all calls under
//   way have ended.
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

constexpr std::size_t kGroup = KeyKernels::kGroup;  // Keys that are found together.
constexpr std::size_t kAhead = 64;                  // Prefetch distance in rows. Rows go to the level 2 cache.
constexpr std::size_t kMostLocks = 8;               // Locks that a thread has at the same time.

/// Tells the stripes of ascending indices in the order of stripes.
class StripeCursor {
 public:
  StripeCursor(StripedBatch const& order, std::size_t stripe) : order_(order), stripe_(stripe) {}
  std::size_t stripe_of(std::size_t index) {
    while (index >= order_.end_of(stripe_)) ++stripe_;
    return stripe_;
  }

 private:
  StripedBatch const& order_;
  std::size_t stripe_;
};

/// Adjacent locks that are free, taken without waiting: none if the first one is taken.
class AdjacentLocks {
 public:
  AdjacentLocks(StripeLocks& locks, std::size_t first) : locks_(locks), first_(first) { add(); }
  /// Takes the next one. @returns whether it was free, and kMostLocks were not taken before
  bool add() {
    if (size_ == kMostLocks) return false;
    held_[size_] = std::unique_lock(locks_[end()], std::try_to_lock);
    if (held_[size_].owns_lock()) return ++size_, true;
    return false;
  }
  [[nodiscard]] std::size_t first() const { return first_; }
  [[nodiscard]] std::size_t end() const { return first_ + size_; }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  StripeLocks& locks_;
  std::size_t first_, size_ = 0;
  std::array<std::unique_lock<std::mutex>, kMostLocks> held_;
};

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

/// The keys of a call, sorted by stripe.
struct CpuTable::SortedKeys {
  StripedBatch order;
  std::vector<std::uint64_t> ids;     ///< (keys) In that order.
  std::vector<std::uint32_t> tables;  ///< (keys) Empty: all are of one table.

  void sort(Keys const& keys, StripeMap const& map, base::ThreadPool& thread_pool) {
    order.sort(keys, map, thread_pool);
    auto const positions = order.of_stripes(0, StripeMap::kCount);
    ids.resize(keys.size());
    tables.resize(keys.tables.size());
    for (std::size_t j = 0; j < positions.size(); ++j) ids[j] = keys.ids[positions[j]];
    for (std::size_t j = 0; j < tables.size(); ++j) tables[j] = keys.tables[positions[j]];
  }
};

/// SortedKeys for one call. They are kept for later calls, as their arrays cost page faults.
class CpuTable::BorrowedKeys {
 public:
  explicit BorrowedKeys(CpuTable const& table) : table_(table) {
    std::lock_guard const lock(table_.spare_mutex_);
    table_.spare_keys_.reserve(kMostSpareKeys);  // So that the destructor does not fail.
    if (table_.spare_keys_.empty()) {
      keys_ = std::make_shared<SortedKeys>();
    } else {
      keys_ = std::move(table_.spare_keys_.back());
      table_.spare_keys_.pop_back();
    }
  }
  ~BorrowedKeys() {
    std::lock_guard const lock(table_.spare_mutex_);
    if (table_.spare_keys_.size() < kMostSpareKeys) table_.spare_keys_.push_back(std::move(keys_));
  }
  BorrowedKeys(BorrowedKeys const&) = delete;
  BorrowedKeys& operator=(BorrowedKeys const&) = delete;
  [[nodiscard]] SortedKeys* operator->() const { return keys_.get(); }

 private:
  CpuTable const& table_;
  std::shared_ptr<SortedKeys> keys_;
};

template <class Self, class Find, class Use>
void CpuTable::under_locks(Self& self, Keys const& keys, Find find, Use use) {
  BorrowedKeys const sorted(self);
  sorted->sort(keys, self.stripe_map_, *self.thread_pool_);
  Keys const in_order{.ids = sorted->ids, .tables = sorted->tables, .table = keys.table};
  // Handles the keys of locks [first_lock, end_lock), which this thread has.
  auto const handle = [&](std::size_t first_lock, std::size_t end_lock, StripeIndices& indices, StagedFind& finding) {
    std::size_t const first_stripe = first_lock * StripeLocks::kStripes, end_stripe = end_lock * StripeLocks::kStripes;
    auto const positions = sorted->order.of_stripes(first_stripe, end_stripe);
    std::size_t const begin = sorted->order.of_stripes(0, first_stripe).size(), end = begin + positions.size();
    StripeCursor of_found(sorted->order, first_stripe), of_used(sorted->order, first_stripe);
    std::array<RowWord, kGroup> words;
    std::array<RowId, kGroup> rows;
    for (std::size_t at = begin; at < end; at += kGroup) {
      auto const group = positions.subspan(at - begin, std::min(kGroup, end - at));
      // The group before may have changed the indices.
      for (auto each = first_stripe; each < end_stripe; ++each) indices.set(each, self.stripes_[each].index);
      finding.run(at, at + group.size(), [&](std::size_t j, RowWord word) { words[j - at] = word; });
      finding.prefetch(at + group.size(), end);
      for (std::size_t j = 0; j < group.size(); ++j) {
        rows[j] = find(self.stripes_[of_found.stripe_of(at + j)], group[j], words[j]);
      }
      auto const prefetch = [&](std::size_t j) {
        if (j < group.size() && rows[j] != RowId::kNone) self.rows_.prefetch(rows[j]);
      };
      for (std::size_t j = 0; j < kAhead; ++j) prefetch(j);
      for (std::size_t j = 0; j < group.size(); ++j) {
        prefetch(j + kAhead);
        use(self.stripes_[of_used.stripe_of(at + j)], group[j], words[j], rows[j]);
      }
    }
  };
  std::size_t const num_tasks = keys.size() > base::ThreadPool::kRangeSize
                                    ? std::min<std::size_t>(self.thread_pool_->num_threads(), StripeLocks::kCount)
                                    : 1;
  auto const task = [&](std::size_t number) {
    StripeIndices indices(self.stripe_map_);
    StagedFind finding(in_order, self.key_kernels_, indices);
    std::array<std::size_t, StripeLocks::kCount> left;
    std::size_t num_left = 0;
    std::size_t const end_lock = (number + 1) * StripeLocks::kCount / num_tasks;
    for (auto lock = number * StripeLocks::kCount / num_tasks; lock < end_lock; ++lock) left[num_left++] = lock;
    while (num_left > 0) {
      std::size_t num_busy = 0;
      for (std::size_t j = 0; j < num_left;) {
        AdjacentLocks locks(self.locks_, left[j]);
        // Entries before j + 1 are free to be overwritten.
        for (++j; j < num_left && left[j] == locks.end() && locks.add();) ++j;
        locks.size() > 0 ? handle(locks.first(), locks.end(), indices, finding)
                         : static_cast<void>(left[num_busy++] = locks.first());
      }
      if (num_busy == num_left) {
        std::lock_guard const lock(self.locks_[left[--num_busy]]);
        handle(left[num_busy], left[num_busy] + 1, indices, finding);
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
      *this, keys, [&](Stripe const& /*stripe*/, std::size_t /*i*/, RowWord word) { return live_row_of(word); },
      [&](Stripe const& /*stripe*/, std::size_t i, RowWord /*word*/, RowId row) {
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
      [&](Stripe& stripe, std::size_t i, RowWord word) {
        if (is_row(word)) {
          __builtin_prefetch(&rows_.metadata(row_of(word)), 1);
          return row_of(word);
        }
        auto const [row, status] = visit_key(stripe, keys[i], hash_of(keys[i]), lookups, i, false);
        if (status == KeyStatus::kNoRoom) {
          std::lock_guard const lock(mutex_of_left);
          left.push_back(i);
        }
        return row;
      },
      [&](Stripe const& /*stripe*/, std::size_t i, RowWord word, RowId row) {
        // visit_key() has counted the others.
        if (is_row(word)) count_alone(rows_.metadata(row), lookups.count(i));
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
      *this, keys, [&](Stripe const& /*stripe*/, std::size_t /*i*/, RowWord word) { return live_row_of(word); },
      [&](Stripe& stripe, std::size_t i, RowWord /*word*/, RowId row) {
        if (row == RowId::kNone) {
          ++stripe.statistics.dropped_gradients;
        } else {
          rows_.update(row, keys[i], common, gradients.subspan(i * dim, dim), stripe.scratch);
        }
      });
}

}  // namespace headway::embedding
