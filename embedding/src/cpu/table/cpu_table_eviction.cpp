// SPDX-License-Identifier: Apache-2.0

// Eviction of a few rows in each step, from queues. eviction_queue.hpp explains the queue of one stripe. Rows of the
// least scores go first. The horizon is the score below which rows are queued. Each stripe has a first queue, which is
// being used up, and a next one, which a scan of all rows fills meanwhile.
//
// Idea: the `count` least rows of all 64 stripes are wanted (ready_least). Each stripe moves its expected share, and
// 10% and 8 entries more, from its queue to `ready`; entries whose score is outdated go back, rows in use wait. The
// count-th least score of all ready rows is a bound. Each stripe then takes its further entries up to the bound, after
// which the `count` least are ready for sure. Rows above the final score return to their queues. If the ready rows are
// too few, shares double; if the queues are empty, the scan is finished and the horizon advances. Between evictions
// prepare_eviction() scans a part of all rows, in proportion to the used part of the first queues.
//
// Example: count 3, shares of two entries; queue A holds scores 1, 2, 8, 9 and queue B 3, 4, 5.
//   Ready: 1, 2, 3, 4. The bound is 3; no further entry is at most 3. 1, 2 and 3 are evicted, 4 returns.
//
// Invariants: rows are evicted in the order (score, hash), exactly as evict_locked() does with its scan of all rows.
//   Stripes run in parallel and share only the horizon, which changes between parallel parts.
// Complexity: O(count log n) for a step, and the part of the scan: about five rows for each evicted row.

#include "cpu/table/cpu_table.hpp"
#include "cpu/table/eviction_queue.hpp"
#include "table_options.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

namespace headway::embedding {

namespace {

/// A horizon advances by 1 / kRowsPerQueued of the rows. A smaller value scans less for each evicted row, and queues
/// more.
constexpr std::size_t kRowsPerQueued = 4;
/// Ratio of the scan's progress to that of the first queues. Above 1, so that the scan ends before they are empty.
constexpr double kScanLead = 1.1;

constexpr auto kByScore = [](EvictionCandidate const& a, EvictionCandidate const& b) { return a.score < b.score; };

/// Step of the last lookup, from a row's score.
std::uint32_t step_of(EvictionPolicy policy, EvictionScore const& score) {
  return static_cast<std::uint32_t>(policy == EvictionPolicy::kLeastRecentlyUsed ? score.first >> 32 : score.first);
}

}  // namespace

EvictionScore CpuTable::score_of(Key key, RowMetadata const& metadata) const {
  return {eviction_score(options_.eviction, metadata.step, metadata.count, expiry()), hash_of(key).low};
}

void CpuTable::evict_batch(std::size_t num_rows, std::size_t allowed, std::size_t low) {
  std::size_t const left = rows_left(num_rows, allowed, low, options_.eviction_batch);
  if (has_queues()) {
    evict_from_queues(num_rows - left);
  } else {
    evict_locked(left, eviction_order());
  }
}

void CpuTable::evict_from_queues(std::size_t num_evicted) {
  if (num_evicted == 0) return;
  // Rows that are not in use any more return to the queues.
  thread_pool_->run(stripes_.size(), [&](std::size_t index) {
    auto& stripe = stripes_[index];
    stripe.queue.release(horizon_,
                         [&](auto const& score) { return step_of(options_.eviction, score) < oldest_in_use_; });
  });
  auto const last = ready_least(num_evicted);
  thread_pool_->run(stripes_.size(), [&](std::size_t index) {
    auto& stripe = stripes_[index];
    for (std::size_t i = 0; i < stripe.ready.size(); ++i) {
      constexpr std::size_t kAhead = StripedBatch::kKeysAhead;
      if (i + kAhead < stripe.ready.size()) stripe.index.prefetch(hash_of(stripe.ready[i + kAhead].key));
      auto const& each = stripe.ready[i];
      // Not among the least `num_evicted`: back to its queue.
      if (last && each.score > *last) {
        stripe.queue.add(each, horizon_);
        continue;
      }
      free_row(stripe, stripe.index.erase(each.key, hash_of(each.key)));
      ++stripe.statistics.evicted;
    }
    stripe.ready.clear();
  });
}

std::optional<EvictionScore> CpuTable::ready_least(std::size_t count) {
  std::size_t const num_rows = size_locked().rows;
  // A stripe's expected share and some more, so that a second round is rare.
  auto const share_of = [&](Stripe const& stripe, double factor) {
    constexpr double kMore = 1.1;
    constexpr std::size_t kAlso = 8;
    double const share = static_cast<double>(stripe.num_rows) / static_cast<double>(num_rows);
    return static_cast<std::size_t>(kMore * factor * share * static_cast<double>(count)) + kAlso;
  };
  double factor = 1;
  for (;;) {
    thread_pool_->run(stripes_.size(), [&](std::size_t index) {
      auto& stripe = stripes_[index];
      std::size_t const share = share_of(stripe, factor);
      make_ready(stripe, [&](EvictionQueue const&) { return stripe.ready.size() < share; });
    });
    // Enough rows are ready: take all entries up to the bound, then find the final score.
    if (auto const last = last_ready(count)) {
      thread_pool_->run(stripes_.size(), [&](std::size_t index) {
        make_ready(stripes_[index], [&](EvictionQueue const& queue) { return queue.least().score <= *last; });
      });
      return last_ready(count);
    }
    if (!std::ranges::all_of(stripes_, [](auto const& stripe) { return stripe.queue.is_empty(); })) {
      factor *= 2;
      continue;
    }
    // All queues are empty: finish the scan and go on with the next horizon, unless every row was queued.
    if (horizon_.known == kMostScore) return std::nullopt;
    scan_to(1);
    advance_horizon();
    factor = 1;
  }
}

template <class Wants>
void CpuTable::make_ready(Stripe& stripe, Wants wants) {
  constexpr std::size_t kAtOnce = StripedBatch::kKeysAhead;
  std::size_t const num_before = stripe.ready.size();
  std::array<EvictionCandidate, kAtOnce> taken;
  std::array<RowId, kAtOnce> rows;
  while (!stripe.queue.is_empty() && wants(stripe.queue)) {
    // Take several entries at a time, so that their cache misses overlap.
    std::size_t num_taken = 0;
    while (num_taken < kAtOnce && !stripe.queue.is_empty() && (num_taken == 0 || wants(stripe.queue))) {
      taken[num_taken] = stripe.queue.take_least();
      stripe.index.prefetch(hash_of(taken[num_taken].key));
      ++num_taken;
    }
    for (std::size_t i = 0; i < num_taken; ++i) {
      rows[i] = row_of(stripe.index.find(taken[i].key, hash_of(taken[i].key)));
      if (rows[i] != RowId::kNone) __builtin_prefetch(&rows_.metadata(rows[i]));
    }
    for (std::size_t i = 0; i < num_taken; ++i) {
      if (rows[i] == RowId::kNone) continue;
      EvictionCandidate const now{score_of(taken[i].key, rows_.metadata(rows[i])), taken[i].key};
      if (is_in_use(rows_.metadata(rows[i]))) {
        stripe.queue.wait(now);
      } else if (now.score != taken[i].score) {
        stripe.queue.add(now, horizon_);
      } else {
        stripe.ready.push_back(now);
      }
    }
  }
  if (stripe.ready.size() == num_before) return;
  // A row may have been queued twice.
  std::ranges::sort(stripe.ready, kByScore);
  auto const is_same = [](EvictionCandidate const& a, EvictionCandidate const& b) { return a.key == b.key; };
  stripe.ready.erase(std::unique(stripe.ready.begin(), stripe.ready.end(), is_same), stripe.ready.end());
}

std::optional<EvictionScore> CpuTable::last_ready(std::size_t count) const {
  std::size_t num_ready = 0;
  for (auto const& stripe : stripes_) num_ready += stripe.ready.size();
  if (num_ready < count) return std::nullopt;
  std::vector<EvictionScore> scores;
  scores.reserve(num_ready);
  for (auto const& stripe : stripes_) {
    for (auto const& each : stripe.ready) scores.push_back(each.score);
  }
  auto const last = scores.begin() + static_cast<std::ptrdiff_t>(count) - 1;
  std::ranges::nth_element(scores, last);
  return *last;
}

// Scans

void CpuTable::prepare_eviction(std::size_t num_rows) {
  std::size_t num_first = 0, num_entries = 0;
  for (auto const& stripe : stripes_) {
    num_first += stripe.queue.size();
    num_entries += stripe.queue.num_entries();
  }
  // Entries of removed rows would accumulate if rows are mostly removed otherwise (erased, expired).
  constexpr std::size_t kFewEntries = std::size_t{1} << 16;
  if (num_entries > 2 * num_rows + kFewEntries) reset_queues();
  if (num_rows <= options_.low_water || horizon_.known == kMostScore) return;
  // Progress of the scan: the used part of the first queues, or before there are any, from low to high water.
  double part = 1;
  if (horizon_.known != kLeastScore) {
    part = 1 - static_cast<double>(num_first) / static_cast<double>(std::max<std::size_t>(num_first_, 1));
  } else if (num_rows < options_.high_water) {
    part = static_cast<double>(num_rows - options_.low_water) /
           static_cast<double>(options_.high_water - options_.low_water);
  }
  if (horizon_.next == kLeastScore) horizon_.next = next_horizon();
  scan_to(std::min(kScanLead * part, 1.0));
}

void CpuTable::scan_to(double part) {
  thread_pool_->run(stripes_.size(), [&](std::size_t index) { scan(stripes_[index], part); });
}

void CpuTable::scan(Stripe& stripe, double part) {
  auto& cursor = stripe.queue.cursor();
  std::size_t const num_buckets = stripe.index.num_slots() / WideBucket::kNumSlots;
  auto const num_wanted = static_cast<std::size_t>(part * static_cast<double>(num_buckets));
  while (!cursor.is_over && (part >= 1 || cursor.num_done < num_wanted)) {
    visit_part(stripe, cursor, [&](Key key, RowId row) {
      auto const& metadata = rows_.metadata(row);
      // Most rows are above the horizon; do not compute their hash.
      if (eviction_score(options_.eviction, metadata.step, metadata.count, expiry()) > horizon_.next.first) return;
      auto const score = score_of(key, metadata);
      if (score >= horizon_.known) stripe.queue.add({score, key}, horizon_);
    });
  }
}

void CpuTable::advance_horizon() {
  horizon_.known = horizon_.next;
  num_first_ = 0;
  for (auto& stripe : stripes_) {
    stripe.queue.advance();
    num_first_ += stripe.queue.size();
  }
  horizon_.next = next_horizon();
}

EvictionScore CpuTable::next_horizon() const {
  // The first buckets of each stripe are a fair sample, as the hash spreads keys evenly.
  std::vector<EvictionScore> scores;
  std::size_t num_rows = 0;
  for (auto const& stripe : stripes_) {
    EvictionQueue::Cursor cursor;
    visit_part(stripe, cursor, [&](Key key, RowId row) {
      ++num_rows;
      auto const score = score_of(key, rows_.metadata(row));
      if (score >= horizon_.known) scores.push_back(score);
    });
  }
  std::size_t const wanted = num_rows / kRowsPerQueued;
  if (wanted == 0 || wanted >= scores.size()) return kMostScore;
  auto const at = scores.begin() + static_cast<std::ptrdiff_t>(wanted);
  std::ranges::nth_element(scores, at);
  return *at == kLeastScore ? kMostScore : *at;
}

void CpuTable::reset_queues() {
  horizon_ = {};
  num_first_ = 0;
  for (auto& stripe : stripes_) stripe.queue = {};
}

}  // namespace headway::embedding
