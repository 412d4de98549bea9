// Which rows of a table on the CPU go: with time, or as there are too many.

#include "cpu/cpu_table.hpp"
#include "headway/comm/status.hpp"
#include "table_options.hpp"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

namespace headway::embedding {

namespace {

/// What goes first is least: by what the policy has, then by hash.
using Score = std::pair<std::uint64_t, std::uint64_t>;

Score score_of(EvictionPolicy policy, RowNotes const& notes, Key key) {
  std::uint64_t const step = notes.step, count = notes.count;
  return {policy == EvictionPolicy::kLeastRecentlyUsed ? step << 32 | count : count << 32 | step, hash_of(key).low};
}

}  // namespace

void CpuTable::begin_step(std::uint32_t step, std::uint32_t oldest_in_use) {
  std::lock_guard const lock(mutex_);
  expect_step(step_, step, oldest_in_use);
  step_ = step;
  oldest_in_use_ = oldest_in_use;
  if (options_.time_to_live > 0) remove_expired();
  auto const size = size_locked();
  if (options_.eviction != EvictionPolicy::kNone && size.rows > options_.high_water) evict_locked(options_.low_water);
  if (size.pending > options_.max_pending) forget_pending();
}

std::size_t CpuTable::evict(std::size_t num_rows) {
  comm::expects(options_.eviction != EvictionPolicy::kNone, "the table has no policy of eviction");
  std::lock_guard const lock(mutex_);
  return evict_locked(num_rows);
}

std::size_t CpuTable::evict_locked(std::size_t num_rows) {
  std::size_t const size = size_locked().rows;
  if (size <= num_rows) return 0;
  std::vector<std::vector<Score>> parts(stripes_.size());
  workers_->run(stripes_.size(), [&](std::size_t number) {
    parts[number].reserve(stripes_[number].num_rows);
    std::as_const(stripes_[number].index).for_each([&](Key key, RowWord word) {
      if (!is_row(word)) return;
      auto const& notes = rows_.notes(row_of(word));
      if (!is_in_use(notes)) parts[number].push_back(score_of(options_.eviction, notes, key));
    });
  });
  std::vector<Score> scores;
  for (auto& part : parts) {
    scores.insert(scores.end(), part.begin(), part.end());
    part = {};
  }
  std::size_t const num_evicted = std::min(size - num_rows, scores.size());
  if (num_evicted == 0) return 0;
  auto const last = scores.begin() + static_cast<std::ptrdiff_t>(num_evicted) - 1;
  std::nth_element(scores.begin(), last, scores.end());
  workers_->run(stripes_.size(), [&](std::size_t number) {
    auto& stripe = stripes_[number];
    stripe.index.erase_if([&](Key key, RowWord word) {
      if (!is_row(word)) return false;
      auto const& notes = rows_.notes(row_of(word));
      if (is_in_use(notes) || score_of(options_.eviction, notes, key) > *last) return false;
      free_row(stripe, word);
      ++stripe.statistics.evicted;
      return true;
    });
  });
  return num_evicted;
}

void CpuTable::remove_expired() {
  // One stripe a step, so that no step takes long.
  auto& stripe = stripes_[next_to_expire_++ % stripes_.size()];
  stripe.index.erase_if([&](Key, RowWord word) {
    if (!is_row(word)) return false;
    auto const& notes = rows_.notes(row_of(word));
    if (is_in_use(notes) || step_ - notes.step <= options_.time_to_live) return false;
    free_row(stripe, word);
    ++stripe.statistics.expired;
    return true;
  });
}

void CpuTable::forget_pending() {
  workers_->run(stripes_.size(), [&](std::size_t number) {
    auto& stripe = stripes_[number];
    stripe.index.erase_if([](Key, RowWord word) { return is_pending(word); });
    stripe.statistics.forgotten += std::exchange(stripe.num_pending, 0);
  });
}

void CpuTable::halve_counts() {
  std::lock_guard const lock(mutex_);
  auto const size = size_locked();
  if (options_.hot_count > 0) {
    rows_.reserve(Precision::kBfloat16, size.rows - size.cold_rows, StripeMap::kCount);
  }
  workers_->run(stripes_.size(), [&](std::size_t number) {
    auto& stripe = stripes_[number];
    stripe.index.for_each([&](Key key, RowWord& word) {
      if (is_pending(word)) {
        word = pending_word(pending_count_of(word) / 2);
        return;
      }
      auto& notes = rows_.notes(row_of(word));
      notes.count /= 2;
      bool const is_float32 = precision_of(row_of(word)) == Precision::kFloat32;
      if (is_float32 && is_cold(notes.count) && !is_in_use(notes)) change_precision(stripe, key, word);
    });
  });
}

}  // namespace headway::embedding
