// SPDX-License-Identifier: Apache-2.0

// Insertion into a CPU table.
//
// Idea (insert_locked): (1) Sort the batch by stripe. (2) Remove expired rows of its keys. (3) make_room: reserve
// memory for all rows that the batch can need. If it may not fit under max_rows, plan_insertions walks the batch in
// order: a new key asks for a row once it reaches min_count lookups, and the first `room` of them get one. If there is
// an eviction policy and more ask, rows are evicted and the plan is made again. (4) Each stripe, on one thread, inserts
// or counts its keys in the order of the batch. find_or_insert() first tries the batch as a lookup only
// (look_up_known), which needs no sort.
//
// Example: rows a, b; max_rows 3; batch (c, a, d, c). One row is free, and c asks for it first.
//   Without a policy: c kInserted, a kFound, d kNoRoom, c kFound.
//   With LRU: two keys ask. The row of a gets the present step, so it stays; b is evicted; c and d get rows.
//
// Invariants: a key is handled by the thread of its stripe, in the order of the batch. So which keys get a row,
//   statuses and counts do not depend on the number of threads (the RowIds may).
//   Rows are reserved before a stripe starts, so allocating one does not fail for lack of rows.
//   A row that is in use (looked up since oldest_in_use) is neither evicted nor demoted. A promotion moves a row at its
//   first lookup of a step; generation() grows then, so that holders of its RowId look it up again.
// Complexity: O(keys) expected. A batch near max_rows costs a serial plan; an eviction scans all rows
//   if stripes have no queues of the rows to evict next.

#include "cpu/table/cpu_table_insertion.hpp"

#include "cpu/table/cpu_table.hpp"
#include "expect_batch.hpp"
#include "saturating_sum.hpp"
#include "table_options.hpp"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace headway::embedding {

namespace {

constexpr std::size_t kMetadataAhead = 64;  // Prefetch distance in RowMetadata.
constexpr std::size_t kValuesPerLine = 16;  // Floats of a cache line.

}  // namespace

void CpuTable::find_or_insert(Keys const& keys, std::span<RowId> rows, std::span<KeyStatus> statuses) {
  expect_one_each(keys, rows.size(), "rows");
  expect_one_each(keys, keys.counts.empty() ? keys.size() : keys.counts.size(), "counts");
  expect_one_each(keys, statuses.empty() ? keys.size() : statuses.size(), "statuses");
  std::lock_guard const lock(mutex_);
  if (look_up_known(keys, rows)) {
    std::ranges::fill(statuses, KeyStatus::kFound);
    return;
  }
  insert_locked(
      keys, {.counts = keys.counts, .min_count = options_.min_count}, statuses, [](std::size_t) {},
      [&](std::size_t i, RowId row) { rows[i] = row; });
}

bool CpuTable::look_up_known(Keys const& keys, std::span<RowId> rows) {
  // With these options a lookup may change a precision or remove a row, which only the thread of a stripe may do.
  if (options_.hot_count > 0 || options_.time_to_live > 0) return false;
  auto const all = indices();
  std::atomic<bool> are_known = true;
  thread_pool_->in_ranges(keys.size(), [&](std::size_t /*range*/, std::size_t first, std::size_t end) {
    if (!are_known.load(std::memory_order_relaxed)) return;
    bool are_rows = true;
    StagedFind(keys, key_kernels_, all).run(first, end, [&](std::size_t i, RowWord word) {
      rows[i] = row_of(word);
      are_rows = are_rows && rows[i] != RowId::kNone;
    });
    if (!are_rows) are_known.store(false, std::memory_order_relaxed);
  });
  if (!are_known.load(std::memory_order_relaxed)) return false;
  thread_pool_->in_ranges(keys.size(), [&](std::size_t /*range*/, std::size_t first, std::size_t end) {
    for (std::size_t i = first; i < end; ++i) {
      if (i + kMetadataAhead < end) __builtin_prefetch(&rows_.metadata(rows[i + kMetadataAhead]), 1);
      count_lookup(rows_.metadata(rows[i]), keys.counts.empty() ? 1 : keys.counts[i]);
    }
  });
  return true;
}

void CpuTable::count_lookup(RowMetadata& metadata, std::uint32_t count) const {
  // A key may repeat in ranges of different threads, so counts are atomic. Relaxed is enough: readers see the counts
  // after the end of the call, which synchronises (ThreadPool's mutex, then `mutex_`).
  if (thread_pool_->num_threads() == 1) return count_alone(metadata, count);
  std::atomic_ref const shared_count(metadata.count), shared_step(metadata.step);
  std::uint32_t before = shared_count.load(std::memory_order_relaxed);
  while (!shared_count.compare_exchange_weak(before, saturating_sum(before, count), std::memory_order_relaxed)) {
  }
  shared_step.store(step_, std::memory_order_relaxed);
}

void CpuTable::insert_or_assign(Keys const& keys, std::span<float const> embeddings, std::span<KeyStatus> statuses) {
  std::size_t const dim = options_.dim;
  expect_values(keys, embeddings.size(), dim, "embeddings");
  insert(
      // An assignment is no lookup: without counts, each key counts 0.
      keys, {.otherwise = 0, .min_count = 0}, statuses,
      [&](std::size_t i) {
        for (std::size_t column = 0; column < dim; column += kValuesPerLine) {
          __builtin_prefetch(&embeddings[i * dim + column]);
        }
      },
      [&](std::size_t i, RowId row) {
        if (row != RowId::kNone) rows_.write(row, embeddings.subspan(i * dim, dim));
      });
}

CpuTable::Visited CpuTable::visit_key(Stripe& stripe, Key key, Hash hash, Lookups const& lookups, std::size_t i,
                                      bool is_refused) {
  auto status = KeyStatus::kFound;
  // The function runs only if the key is absent. It decides what the new slot holds; kEmpty inserts nothing.
  auto* const word = stripe.index.find_or_insert(key, hash, [&] {
    if (is_refused) return RowWord::kEmpty;
    if (lookups.count(i) < lookups.min_count) {
      ++stripe.num_pending;
      return pending_word(0);
    }
    status = KeyStatus::kInserted;
    return make_row(stripe, key, lookups.count(i));
  });
  // Either a new key that gets no row, a pending key that may reach min_count now, or a key that had a row.
  if (word == nullptr) return {RowId::kNone, KeyStatus::kNoRoom};
  if (is_pending(*word)) {
    std::uint32_t const count = saturating_sum(pending_count_of(*word), lookups.count(i));
    if (count < lookups.min_count || is_refused) {
      *word = pending_word(count);
      return {RowId::kNone, is_refused && count >= lookups.min_count ? KeyStatus::kNoRoom : KeyStatus::kPending};
    }
    auto const made = make_row(stripe, key, count);
    if (made == RowWord::kEmpty) return {RowId::kNone, KeyStatus::kNoRoom};
    *word = made;
    --stripe.num_pending;
    return {row_of(made), KeyStatus::kInserted};
  }
  if (status == KeyStatus::kFound) look_up(stripe, key, *word, lookups.count(i));
  return {row_of(*word), status};
}

RowWord CpuTable::make_row(Stripe& stripe, Key key, std::uint32_t count) {
  auto const precision = is_cold(count) ? Precision::kBfloat16 : Precision::kFloat32;
  RowId const row = stripe.rows.allocate(precision);
  if (row == RowId::kNone) return RowWord::kEmpty;
  rows_.initialise(row, key, options_.initializer, stripe.scratch);
  auto& metadata = rows_.metadata(row);
  metadata.count = count;
  metadata.step = step_;
  if (precision == Precision::kBfloat16) ++stripe.num_cold;
  add_rows(stripe, 1);
  ++stripe.statistics.inserted;
  queue_new_row(stripe, key, metadata);
  return RowWord{static_cast<std::uint32_t>(row)};
}

void CpuTable::look_up(Stripe& stripe, Key key, RowWord& word, std::uint32_t count) {
  auto& metadata = rows_.metadata(row_of(word));
  bool const is_first_of_step = metadata.step != step_;
  count_alone(metadata, count);
  if (precision_of(row_of(word)) == Precision::kFloat32 || is_cold(metadata.count)) return;
  // The row id was already given out in this step, so the row must not move.
  if (!is_first_of_step) return;
  change_precision(stripe, key, word);
}

void CpuTable::change_precision(Stripe& stripe, Key key, RowWord& word) {
  bool const is_promotion = precision_of(row_of(word)) == Precision::kBfloat16;
  RowId const to = stripe.rows.allocate(is_promotion ? Precision::kFloat32 : Precision::kBfloat16);
  assert(to != RowId::kNone && "rows were reserved");
  rows_.move(row_of(word), to, key, step_, stripe.scratch);
  stripe.rows.free(row_of(word));
  word = RowWord{static_cast<std::uint32_t>(to)};
  is_promotion ? --stripe.num_cold : ++stripe.num_cold;
  ++(is_promotion ? stripe.statistics.promoted : stripe.statistics.demoted);
}

void CpuTable::make_room(Keys const& keys, Lookups const& lookups) {
  is_refused_.clear();
  auto size = size_locked();
  auto const room = [&] {
    std::size_t const most = lookups.is_limited ? options_.max_rows : kMostTableRows;
    return most - std::min(most, size.rows);
  };
  // If the batch might not fit, look up which keys are new and plan which of them get a row.
  if (keys.size() > room()) {
    words_.resize(keys.size());
    auto const no_prefetch = [](std::size_t) {};
    in_stripes(no_prefetch,
               [&](Stripe& stripe, std::size_t i, Hash hash) { words_[i] = stripe.index.find(keys[i], hash); });
    std::size_t const wanted = plan_insertions(keys, lookups, room());
    if (options_.eviction != EvictionPolicy::kNone && wanted > room()) {
      in_stripes(no_prefetch, [&](Stripe& /*stripe*/, std::size_t i, Hash /*hash*/) {
        if (is_row(words_[i])) rows_.metadata(row_of(words_[i])).step = step_;  // Marks it as in use: not evicted.
      });
      std::size_t const allowed = options_.max_rows - std::min(options_.max_rows, wanted);
      evict_batch(size.rows, allowed, std::min(options_.low_water, allowed));
      size = size_locked();
      plan_insertions(keys, lookups, room());
    }
  }
  // A cold row of the batch may be promoted, and then needs a float32 row too.
  std::size_t const num_new = std::min(keys.size(), room());
  if (options_.hot_count > 0) rows_.reserve(Precision::kBfloat16, num_new, StripeMap::kCount);
  rows_.reserve(Precision::kFloat32, num_new + std::min(keys.size(), size.cold_rows), StripeMap::kCount);
}

std::size_t CpuTable::plan_insertions(Keys const& keys, Lookups const& lookups, std::size_t room) {
  struct HashKey {
    std::size_t operator()(Key key) const { return hash_of(key).low; }
  };
  is_refused_.assign(keys.size(), false);
  std::size_t wanted = 0;
  /// Key of the batch without a row.
  struct Newcomer {
    std::uint32_t count = 0;  ///< Lookups so far, with those of previous batches.
    bool has_asked = false, is_refused = false;
  };
  std::unordered_map<Key, Newcomer, HashKey> newcomers;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (is_row(words_[i])) continue;
    auto& newcomer = newcomers[keys[i]];
    if (newcomer.count == 0 && is_pending(words_[i])) newcomer.count = pending_count_of(words_[i]);
    newcomer.count = saturating_sum(newcomer.count, lookups.count(i));
    if (newcomer.count < lookups.min_count) continue;
    if (!std::exchange(newcomer.has_asked, true)) newcomer.is_refused = wanted++ >= room;
    is_refused_[i] = newcomer.is_refused;
  }
  return wanted;
}

}  // namespace headway::embedding
