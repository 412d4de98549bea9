// SPDX-License-Identifier: Apache-2.0

// Removal of rows from a CPU table: erasure, expiry, eviction by a scan of all rows, forgotten pending keys, halved
// counts.
//
// Idea of the scan (evict_locked, forget_pending): collect the scores of all candidates, one list for each stripe. Find
// the score of the last one to go with nth_element. Erase all candidates up to that score. Scores end in the key's
// hash, so the number of erased rows is exact unless hashes are equal. Expiry (sweep_expired) visits the rows of one
// stripe of 64 for each step that passed. Lookups find expired rows absent before that.
//
// Example: rows with (step, hash) (1, 7), (1, 3), (4, 5), all not in use; LRU; two rows may stay.
//   One row goes. The last score to go is (1, 3), so that row is erased and (1, 7) stays.
//
// Invariants: a row looked up since oldest_in_use stays. The order is the same with queues (cpu_table_eviction.cpp) and
//   on CUDA devices.
// Complexity: O(rows) for a scan, with 16 bytes of scratch memory for each row, and more while the lists are joined.

#include "cpu/table/cpu_table.hpp"
#include "expect_batch.hpp"
#include "headway/base/status.hpp"
#include "table_options.hpp"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace headway::embedding {

namespace {

using Score = EvictionScore;

/// The largest of the `num_wanted(count)` least scores, where `count` is the number of scores of all parts; nullopt if
/// none is wanted. Frees the memory of `parts`.
template <class NumWanted>
std::optional<Score> last_of_least(std::vector<std::vector<Score>>& parts, NumWanted num_wanted) {
  std::vector<Score> scores;
  for (auto& part : parts) {
    scores.insert(scores.end(), part.begin(), part.end());
    part = {};
  }
  std::size_t const count = num_wanted(scores.size());
  if (count == 0) return std::nullopt;
  auto const last = scores.begin() + static_cast<std::ptrdiff_t>(count) - 1;
  std::nth_element(scores.begin(), last, scores.end());
  return *last;
}

}  // namespace

void CpuTable::begin_step(std::uint32_t step, std::uint32_t oldest_in_use) {
  std::lock_guard const lock(mutex_);
  std::lock_guard const alone(calls_);
  expect_step(step_, step, oldest_in_use);
  auto const before = std::exchange(step_, step);
  oldest_in_use_ = oldest_in_use;
  if (options_.time_to_live > 0) sweep_expired(before);
  auto const size = size_locked();
  if (options_.eviction != EvictionPolicy::kNone) {
    if (size.rows > options_.high_water) evict_batch(size.rows, options_.high_water, options_.low_water);
    if (has_queues()) prepare_eviction(size_locked().rows);
  }
  if (size.pending > options_.max_pending) forget_pending(pending_low_water(options_.max_pending));
}

void CpuTable::resume_step(std::uint32_t step, std::uint32_t oldest_in_use) {
  std::lock_guard const lock(mutex_);
  expect_step(step_, step, oldest_in_use);
  step_ = step;
  oldest_in_use_ = oldest_in_use;
}

std::size_t CpuTable::evict(std::size_t num_rows) {
  base::expects(options_.eviction != EvictionPolicy::kNone, "the table has no policy of eviction");
  std::lock_guard const lock(mutex_);
  return evict_locked(num_rows, eviction_order());
}

std::size_t CpuTable::evict_beyond_limit() {
  std::lock_guard const lock(mutex_);
  return evict_locked(options_.max_rows, {policy_of_limit(options_.eviction), kNoStepInUse});
}

std::size_t CpuTable::evict_locked(std::size_t num_rows, EvictionOrder const& order) {
  std::size_t const size = size_locked().rows;
  if (size <= num_rows) return 0;
  // Score of a row that may be evicted; nullopt for a row in use.
  auto const score_of_row = [&](Key key, RowWord word) -> std::optional<Score> {
    auto const& metadata = rows_.metadata(row_of(word));
    if (metadata.step >= order.oldest_in_use) return std::nullopt;
    return Score{eviction_score(order.policy, metadata.step, metadata.count, expiry()), hash_of(key).low};
  };
  std::vector<std::vector<Score>> parts(stripes_.size());
  thread_pool_->run(stripes_.size(), [&](std::size_t index) {
    parts[index].reserve(stripes_[index].num_rows);
    std::as_const(stripes_[index].index).for_each([&](Key key, RowWord word) {
      if (!is_row(word)) return;
      if (auto const score = score_of_row(key, word)) parts[index].push_back(*score);
    });
  });
  std::size_t num_evicted = 0;
  auto const last =
      last_of_least(parts, [&](std::size_t count) { return num_evicted = std::min(size - num_rows, count); });
  if (!last) return 0;
  thread_pool_->run(stripes_.size(), [&](std::size_t index) {
    auto& stripe = stripes_[index];
    stripe.index.erase_if([&](Key key, RowWord word) {
      if (!is_row(word)) return false;
      auto const score = score_of_row(key, word);
      if (!score || *score > *last) return false;
      free_row(stripe, word);
      ++stripe.statistics.evicted;
      return true;
    });
  });
  return num_evicted;
}

void CpuTable::sweep_expired(std::uint32_t step_before) {
  auto const sweep = sweep_of(step_before, step_, stripes_.size());
  thread_pool_->run(sweep.count, [&](std::size_t i) {
    auto& stripe = stripes_[(sweep.first + i) % stripes_.size()];
    EvictionQueue::Cursor cursor;
    while (!cursor.is_over) {
      visit_part(stripe, cursor, [&](Key key, RowId row) {
        if (!is_expired(rows_.metadata(row))) return;
        free_row(stripe, stripe.index.erase(key, hash_of(key)));
        ++stripe.statistics.expired;
      });
    }
  });
}

void CpuTable::forget_pending(std::size_t num_left) {
  auto const score_of_pending = [order = pending_order(step_)](Key key, RowWord word) {
    return Score{pending_count_of(word), hash_of(key).low ^ order};
  };
  std::vector<std::vector<Score>> parts(stripes_.size());
  thread_pool_->run(stripes_.size(), [&](std::size_t index) {
    parts[index].reserve(stripes_[index].num_pending);
    std::as_const(stripes_[index].index).for_each([&](Key key, RowWord word) {
      if (is_pending(word)) parts[index].push_back(score_of_pending(key, word));
    });
  });
  auto const last = last_of_least(parts, [num_left](std::size_t count) { return count - std::min(count, num_left); });
  if (!last) return;
  thread_pool_->run(stripes_.size(), [&](std::size_t index) {
    auto& stripe = stripes_[index];
    stripe.index.erase_if([&](Key key, RowWord word) {
      if (!is_pending(word) || score_of_pending(key, word) > *last) return false;
      --stripe.num_pending;
      ++stripe.statistics.forgotten;
      return true;
    });
  });
}

void CpuTable::halve_counts() {
  std::lock_guard const lock(mutex_);
  reset_queues();
  auto const size = size_locked();
  if (options_.hot_count > 0) {
    rows_.reserve(Precision::kBfloat16, size.rows - size.cold_rows, StripeMap::kCount);
  }
  thread_pool_->run(stripes_.size(), [&](std::size_t index) {
    auto& stripe = stripes_[index];
    stripe.index.for_each([&](Key key, RowWord& word) {
      if (is_pending(word)) {
        word = pending_word(pending_count_of(word) / 2);
        return;
      }
      auto& metadata = rows_.metadata(row_of(word));
      metadata.count /= 2;
      bool const is_float32 = precision_of(row_of(word)) == Precision::kFloat32;
      if (is_float32 && is_cold(metadata.count) && !is_in_use(metadata)) change_precision(stripe, key, word);
    });
  });
}

void CpuTable::erase(Keys const& keys) {
  expect_one_each(keys, keys.size(), "keys");
  std::lock_guard const lock(mutex_);
  batch_.sort(keys, stripe_map_, *thread_pool_);
  in_stripes([](std::size_t) {},
             [&](Stripe& stripe, std::size_t i, Hash hash) {
               auto const word = stripe.index.erase(keys[i], hash);
               if (is_pending(word)) --stripe.num_pending;
               if (!is_row(word)) return;
               free_row(stripe, word);
               ++stripe.statistics.erased;
             });
}

void CpuTable::remove_expired_of(Keys const& keys) {
  in_stripes([](std::size_t) {},
             [&](Stripe& stripe, std::size_t i, Hash hash) {
               auto const word = stripe.index.find(keys[i], hash);
               if (!is_row(word) || !is_expired(rows_.metadata(row_of(word)))) return;
               stripe.index.erase(keys[i], hash);
               free_row(stripe, word);
               ++stripe.statistics.expired;
             });
}

void CpuTable::free_row(Stripe& stripe, RowWord word) {
  if (precision_of(row_of(word)) == Precision::kBfloat16) --stripe.num_cold;
  stripe.rows.free(row_of(word));
  add_rows(stripe, -1);
}

}  // namespace headway::embedding
