// CPU table: lookup, insertion, gather and update. Insertion is the algorithm of this file.
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
//   first lookup of a step; generation() grows then.
// Complexity: O(keys) expected. A batch near max_rows costs a serial plan; an eviction without queues scans all rows.

#include "cpu/cpu_table.hpp"

#include "cpu/cpu_deduplicator.hpp"
#include "cpu/member_sums.hpp"
#include "expect_batch.hpp"
#include "headway/comm/status.hpp"
#include "saturating_sum.hpp"
#include "table_options.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

namespace headway::embedding {

namespace {

// Prefetch distances (kKeysAhead in buckets, kRowsAhead in rows, kNotesAhead in RowNotes), rows per call of a vector
// kernel, and floats of a cache line.
constexpr std::size_t kKeysAhead = StripedBatch::kKeysAhead, kRowsAhead = 8, kRowsAtOnce = 32, kNotesAhead = 64,
                      kValuesPerLine = 16;

}  // namespace

std::unique_ptr<Table> make_cpu_table(TableOptions const& options) { return std::make_unique<CpuTable>(options); }

CpuTable::CpuTable(TableOptions const& options)
    : options_(checked(options)),
      workers_(options.workers ? options.workers : make_workers(1)),
      rows_(options.dim, kernels::RowOptimizer(options.optimizer)),
      stripes_(make_stripes()) {}

std::vector<CpuTable::Stripe> CpuTable::make_stripes() {
  std::vector<Stripe> stripes;
  stripes.reserve(StripeMap::kCount);
  for (std::size_t i = 0; i < StripeMap::kCount; ++i)
    stripes.emplace_back(segments_, rows_, options_.hot_count > 0 ? options_.dim : 0);
  return stripes;
}

std::size_t CpuTable::state_size() const {
  kernels::RowOptimizer const optimizer(options_.optimizer);
  return optimizer.state_size(options_.dim) + (optimizer.is_row_wise() ? 1 : 0);
}

TableSize CpuTable::size() const {
  std::shared_lock const lock(mutex_);
  return size_locked();
}

TableSize CpuTable::size_locked() const {
  TableSize sum{.key_bytes = segments_.num_bytes(), .row_bytes = rows_.num_bytes()};
  for (auto const& stripe : stripes_) {
    sum.rows += stripe.num_rows;
    sum.cold_rows += stripe.num_cold;
    sum.pending += stripe.num_pending;
    sum.key_bytes += stripe.queue.num_bytes();
  }
  return sum;
}

TableStatistics CpuTable::statistics() const {
  std::shared_lock const lock(mutex_);
  TableStatistics sum;
  for (auto const& stripe : stripes_) {
    auto const& part = stripe.statistics;
    sum.inserted += part.inserted;
    sum.erased += part.erased;
    sum.evicted += part.evicted;
    sum.expired += part.expired;
    sum.refused += part.refused;
    sum.forgotten += part.forgotten;
    sum.promoted += part.promoted;
    sum.demoted += part.demoted;
    sum.dropped_gradients += part.dropped_gradients;
  }
  return sum;
}

std::uint64_t CpuTable::generation() const {
  auto const counts = statistics();
  return counts.erased + counts.evicted + counts.expired + counts.promoted + counts.demoted;
}

// Reading

namespace {

/// Whether embeddings are written with non-temporal stores: so many that their reader would not find them in a cache.
bool goes_past_caches(std::span<float const> out, std::size_t dim) {
  constexpr std::size_t kStreamedBytes = std::size_t{16} << 20, kUnit = kernels::VectorKernels::kStreamBytes;
  bool const is_aligned = reinterpret_cast<std::uintptr_t>(out.data()) % kUnit == 0 && dim * sizeof(float) % kUnit == 0;
  return out.size_bytes() >= kStreamedBytes && is_aligned;
}

}  // namespace

/// Reads the embeddings of the members of bags. For one thread.
class CpuTable::BagMembers {
 public:
  BagMembers(CpuTable const& table, Keys const& keys, std::span<RowId const> rows,
             std::span<std::uint32_t const> numbers)
      : table_(table), keys_(keys), rows_(rows), numbers_(numbers) {}

  /// Copies the embedding of member `i`.
  void copy(std::size_t i, std::span<float> out) {
    prefetch(i + kRowsAhead);
    std::uint32_t const number = numbers_[i];
    if (auto const* const vector = table_.find_vector(rows_[number])) {
      std::copy_n(vector, out.size(), out.begin());
    } else {
      table_.read_or_initialise(keys_, number, rows_[number], out);
    }
  }
  /// (count) Embeddings of the members from `first` on, at most kRowsAtOnce. Valid until the next call.
  float const* const* locate(std::size_t first, std::size_t count) {
    std::size_t const dim = table_.options_.dim;
    for (std::size_t i = 0; i < count; ++i) {
      prefetch(first + i + kRowsAhead);
      std::uint32_t const number = numbers_[first + i];
      vectors_[i] = table_.find_vector(rows_[number]);
      if (vectors_[i] != nullptr) continue;
      scratch_.resize(kRowsAtOnce * dim);
      auto const values = std::span(scratch_).subspan(i * dim, dim);
      table_.read_or_initialise(keys_, number, rows_[number], values);
      vectors_[i] = values.data();
    }
    return vectors_.data();
  }

 private:
  void prefetch(std::size_t i) const {
    if (i < numbers_.size() && table_.rows_.has(rows_[numbers_[i]])) table_.rows_.prefetch(rows_[numbers_[i]]);
  }

  CpuTable const& table_;
  Keys const& keys_;
  std::span<RowId const> rows_;
  std::span<std::uint32_t const> numbers_;
  std::array<float const*, kRowsAtOnce> vectors_;
  std::vector<float> scratch_;  ///< (kRowsAtOnce, dim) Embeddings of members without a float32 row.
};

void CpuTable::find(Keys const& keys, std::span<RowId> rows, std::span<KeyStatus> statuses) const {
  expect_one_each(keys, rows.size(), "rows");
  expect_one_each(keys, statuses.empty() ? keys.size() : statuses.size(), "statuses");
  std::shared_lock const lock(mutex_);
  auto const all = indices();
  workers_->in_ranges(keys.size(), [&](std::size_t /*range*/, std::size_t first, std::size_t end) {
    StagedFind(keys, key_kernels_, all).run(first, end, [&](std::size_t i, RowWord word) {
      rows[i] = row_of(word);
      if (rows[i] != RowId::kNone && is_expired(rows_.notes(rows[i]))) rows[i] = RowId::kNone;
      if (!statuses.empty()) statuses[i] = rows[i] == RowId::kNone ? KeyStatus::kAbsent : KeyStatus::kFound;
    });
  });
}

void CpuTable::gather(Keys const& keys, std::span<RowId const> rows, std::span<float> out) const {
  expect_one_each(keys, rows.size(), "rows");
  std::size_t const dim = options_.dim;
  expect_values(keys, out.size(), dim, "out");
  std::shared_lock const lock(mutex_);
  auto const copy = goes_past_caches(out, dim) ? vector_kernels_.stream : vector_kernels_.gather;
  workers_->in_ranges_of(keys.size(), dim * sizeof(float), [&](std::size_t first, std::size_t end) {
    std::array<float const*, kRowsAtOnce> vectors, next;
    auto const locate = [&](std::size_t at) -> kernels::VectorKernels::Vectors {
      std::size_t const count = at < end ? std::min(kRowsAtOnce, end - at) : 0;
      for (std::size_t i = 0; i < count; ++i) next[i] = find_vector(rows[at + i]);
      return {.at = next.data(), .count = count};
    };
    // Pipeline: each call copies a group of embeddings and prefetches those of the next group.
    copy(dim, {}, locate(first), nullptr);
    for (std::size_t at = first; at < end; at += kRowsAtOnce) {
      vectors.swap(next);
      std::size_t const count = std::min(kRowsAtOnce, end - at);
      copy(dim, {.at = vectors.data(), .count = count}, locate(at + count), &out[at * dim]);
      // Keys without a row, and rows in bfloat16, were skipped by `copy`.
      for (std::size_t i = 0; i < count; ++i) {
        if (vectors[i] == nullptr) read_or_initialise(keys, at + i, rows[at + i], out.subspan((at + i) * dim, dim));
      }
    }
  });
}

float const* CpuTable::find_vector(RowId row) const {
  if (row == RowId::kNone) return nullptr;
  expect_row(row);
  return rows_.find_vector(row);
}

void CpuTable::read_or_initialise(Keys const& keys, std::size_t i, RowId row, std::span<float> out) const {
  if (row == RowId::kNone) {
    options_.initializer.fill(keys[i], out);
  } else {
    rows_.read(row, out);
  }
}

void CpuTable::gather_bags(Keys const& keys, std::span<RowId const> rows, std::span<std::uint32_t const> numbers,
                           Bags const& bags, std::span<float> out) const {
  expect_one_each(keys, rows.size(), "rows");
  std::size_t const dim = options_.dim, num_bags = count_bags_on_host(numbers.size(), bags);
  comm::expects(out.size() == num_bags * dim, "out does not have a vector for each bag");
  std::shared_lock const lock(mutex_);
  std::size_t const bag_bytes = (numbers.size() / (num_bags + 1) + 1) * dim * sizeof(float);
  workers_->in_ranges_of(num_bags, bag_bytes, [&](std::size_t first, std::size_t end) {
    BagMembers members(*this, keys, rows, numbers);
    for (std::size_t bag = first; bag < end; ++bag) {
      auto const sum = out.subspan(bag * dim, dim);
      auto const begin = bags.offsets.empty() ? bag : static_cast<std::size_t>(bags.offsets[bag]);
      auto const after = bags.offsets.empty() ? bag + 1 : static_cast<std::size_t>(bags.offsets[bag + 1]);
      if (after == begin + 1 && bags.weights.empty()) {
        members.copy(begin, sum);
        continue;
      }
      std::ranges::fill(sum, 0);
      for (std::size_t at = begin; at < after; at += kRowsAtOnce) {
        std::size_t const count = std::min(kRowsAtOnce, after - at);
        float const* const weights = bags.weights.empty() ? nullptr : &bags.weights[at];
        vector_kernels_.add(dim, count, members.locate(at, count), weights, sum.data());
      }
    }
  });
}

template <class Visit, class Miss>
void CpuTable::for_each_row(std::span<RowId const> rows, std::size_t first, std::size_t end, Visit visit,
                            Miss miss) const {
  for (std::size_t i = first; i < end; ++i) {
    if (i + kRowsAhead < end && rows_.has(rows[i + kRowsAhead])) rows_.prefetch(rows[i + kRowsAhead]);
    if (rows[i] == RowId::kNone) {
      miss(i);
    } else {
      expect_row(rows[i]);
      visit(i);
    }
  }
}

// Changing

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
  workers_->in_ranges(keys.size(), [&](std::size_t /*range*/, std::size_t first, std::size_t end) {
    if (!are_known.load(std::memory_order_relaxed)) return;
    bool are_rows = true;
    StagedFind(keys, key_kernels_, all).run(first, end, [&](std::size_t i, RowWord word) {
      rows[i] = row_of(word);
      are_rows = are_rows && rows[i] != RowId::kNone;
    });
    if (!are_rows) are_known.store(false, std::memory_order_relaxed);
  });
  if (!are_known.load(std::memory_order_relaxed)) return false;
  workers_->in_ranges(keys.size(), [&](std::size_t /*range*/, std::size_t first, std::size_t end) {
    for (std::size_t i = first; i < end; ++i) {
      if (i + kNotesAhead < end) __builtin_prefetch(&rows_.notes(rows[i + kNotesAhead]), 1);
      count_lookup(rows_.notes(rows[i]), keys.counts.empty() ? 1 : keys.counts[i]);
    }
  });
  return true;
}

void CpuTable::count_lookup(RowNotes& notes, std::uint32_t count) const {
  // A key may repeat in ranges of different threads, so counts are atomic. Relaxed is enough: readers see the counts
  // after the end of the call, which synchronises (WorkerPool's mutex, then `mutex_`).
  if (workers_->num_threads() == 1) {
    notes.count = saturating_sum(notes.count, count);
    notes.step = step_;
    return;
  }
  std::atomic_ref const shared_count(notes.count), shared_step(notes.step);
  std::uint32_t before = shared_count.load(std::memory_order_relaxed);
  while (!shared_count.compare_exchange_weak(before, saturating_sum(before, count), std::memory_order_relaxed)) {
  }
  shared_step.store(step_, std::memory_order_relaxed);
}

void CpuTable::insert_or_assign(Keys const& keys, std::span<float const> vectors, std::span<KeyStatus> statuses) {
  std::size_t const dim = options_.dim;
  expect_values(keys, vectors.size(), dim, "vectors");
  insert(
      keys, {.otherwise = 0, .min_count = 0}, statuses,
      [&](std::size_t i) {
        for (std::size_t column = 0; column < dim; column += kValuesPerLine) {
          __builtin_prefetch(&vectors[i * dim + column]);
        }
      },
      [&](std::size_t i, RowId row) {
        if (row != RowId::kNone) rows_.write(row, vectors.subspan(i * dim, dim));
      });
}

void CpuTable::import_records(Records const& records, std::span<KeyStatus> statuses) {
  auto const keys = records.keys();
  std::size_t const dim = options_.dim, width = state_size();
  expect_one_each(keys, records.tables.size(), "tables");
  expect_one_each(keys, records.counts.size(), "counts");
  expect_one_each(keys, records.steps.size(), "steps");
  expect_values(keys, records.vectors.size(), dim, "vectors");
  expect_values(keys, records.states.size(), width, "states");
  auto const last = last_of_each(records);
  {
    std::lock_guard const lock(mutex_);
    for (auto const step : records.steps) newest_step_ = std::max(newest_step_, step);
    reset_queues();
  }
  // Counts of records decide the precision of a row; they replace its count and are not added to it.
  insert(
      keys, {.counts = last.counts, .min_count = 0, .is_limited = false}, statuses, [](std::size_t) {},
      [&](std::size_t i, RowId row) {
        if (row == RowId::kNone || !last.is_last[i]) return;
        rows_.write(row, std::span(records.vectors).subspan(i * dim, dim));
        auto const state = rows_.state(row);
        std::copy_n(records.states.begin() + static_cast<std::ptrdiff_t>(i * width), state.size(), state.begin());
        // The last column of `states` is the scalar of a row-wise optimizer.
        rows_.notes(row) = {.count = records.counts[i],
                            .step = records.steps[i],
                            .state = width > state.size() ? records.states[(i + 1) * width - 1] : 0};
      });
}

void CpuTable::import_pending(Records const& records) {
  auto const keys = records.keys();
  expect_one_each(keys, records.tables.size(), "tables");
  expect_one_each(keys, records.counts.size(), "counts");
  std::lock_guard const lock(mutex_);
  batch_.sort(keys, stripe_map_, *workers_);
  in_stripes([](std::size_t) {},
             [&](Stripe& stripe, std::size_t i, Hash hash) {
               auto* const word = stripe.index.find_or_insert(keys[i], hash, [&] {
                 ++stripe.num_pending;
                 return pending_word(0);
               });
               if (is_pending(*word)) *word = pending_word(records.counts[i]);
             });
}

CpuTable::LastOfEach CpuTable::last_of_each(Records const& records) {
  std::size_t const num_records = records.ids.size();
  if (options_.hot_count == 0) return {.counts = records.counts, .is_last = std::vector<bool>(num_records, true)};
  LastOfEach last{.counts = std::vector<std::uint32_t>(num_records), .is_last = std::vector<bool>(num_records)};
  auto const unique = CpuDeduplicator(workers_).deduplicate(records.keys());
  for (std::size_t number = 0; number < unique.size(); ++number) {
    std::size_t const first = unique.members[unique.begins[number]];
    std::size_t const at = unique.members[unique.begins[number + 1] - 1];
    last.counts[first] = records.counts[at];
    last.is_last[at] = true;
  }
  return last;
}

template <class Announce, class Visit>
void CpuTable::insert(Keys const& keys, Lookups const& lookups, std::span<KeyStatus> statuses, Announce announce,
                      Visit visit) {
  expect_one_each(keys, statuses.empty() ? keys.size() : statuses.size(), "statuses");
  std::lock_guard const lock(mutex_);
  insert_locked(keys, lookups, statuses, announce, visit);
}

template <class Announce, class Visit>
void CpuTable::insert_locked(Keys const& keys, Lookups const& lookups, std::span<KeyStatus> statuses, Announce announce,
                             Visit visit) {
  batch_.sort(keys, stripe_map_, *workers_);
  if (options_.time_to_live > 0 && lookups.is_limited) remove_expired_of(keys);
  make_room(keys, lookups);
  in_stripes(announce, [&](Stripe& stripe, std::size_t i, Hash hash) {
    Key const key = keys[i];
    bool const is_refused = !is_refused_.empty() && is_refused_[i];
    auto status = KeyStatus::kFound;
    auto* const word = stripe.index.find_or_insert(key, hash, [&] {
      if (is_refused) return RowWord::kEmpty;
      if (lookups.count(i) < lookups.min_count) {
        ++stripe.num_pending;
        return pending_word(0);
      }
      status = KeyStatus::kInserted;
      return make_row(stripe, key, lookups.count(i));
    });
    // Either a refused new key, a pending key that may reach min_count now, or a key that had a row.
    if (word == nullptr) {
      status = KeyStatus::kNoRoom;
    } else if (is_pending(*word)) {
      std::uint32_t const count = saturating_sum(pending_count_of(*word), lookups.count(i));
      status = count < lookups.min_count ? KeyStatus::kPending : is_refused ? KeyStatus::kNoRoom : KeyStatus::kInserted;
      *word = status == KeyStatus::kInserted ? make_row(stripe, key, count) : pending_word(count);
      if (status == KeyStatus::kInserted) --stripe.num_pending;
    } else if (status == KeyStatus::kFound) {
      look_up(stripe, key, *word, lookups.count(i));
    }
    if (status == KeyStatus::kNoRoom) ++stripe.statistics.refused;
    if (!statuses.empty()) statuses[i] = status;
    visit(i, word == nullptr ? RowId::kNone : row_of(*word));
  });
}

RowWord CpuTable::make_row(Stripe& stripe, Key key, std::uint32_t count) {
  auto const precision = is_cold(count) ? Precision::kBfloat16 : Precision::kFloat32;
  RowId const row = stripe.rows.allocate(precision);
  rows_.initialise(row, key, options_.initializer, stripe.scratch);
  auto& notes = rows_.notes(row);
  notes.count = count;
  notes.step = step_;
  if (precision == Precision::kBfloat16) ++stripe.num_cold;
  ++stripe.num_rows;
  ++stripe.statistics.inserted;
  queue_new_row(stripe, key, notes);
  return RowWord{static_cast<std::uint32_t>(row)};
}

void CpuTable::look_up(Stripe& stripe, Key key, RowWord& word, std::uint32_t count) {
  auto& notes = rows_.notes(row_of(word));
  bool const is_first_of_step = notes.step != step_;
  notes.count = saturating_sum(notes.count, count);
  notes.step = step_;
  if (precision_of(row_of(word)) == Precision::kFloat32 || is_cold(notes.count)) return;
  // The row id was already given out in this step, so the row must not move.
  if (!is_first_of_step) return;
  change_precision(stripe, key, word);
}

void CpuTable::change_precision(Stripe& stripe, Key key, RowWord& word) {
  bool const is_promotion = precision_of(row_of(word)) == Precision::kBfloat16;
  RowId const to = stripe.rows.allocate(is_promotion ? Precision::kFloat32 : Precision::kBfloat16);
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
    auto const nothing = [](std::size_t) {};
    in_stripes(nothing,
               [&](Stripe& stripe, std::size_t i, Hash hash) { words_[i] = stripe.index.find(keys[i], hash); });
    std::size_t const wanted = plan_insertions(keys, lookups, room());
    if (options_.eviction != EvictionPolicy::kNone && wanted > room()) {
      in_stripes(nothing, [&](Stripe& /*stripe*/, std::size_t i, Hash /*hash*/) {
        if (is_row(words_[i])) rows_.notes(row_of(words_[i])).step = step_;  // Marks it as in use: not evicted.
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

template <class GradientOf>
void CpuTable::learn(Keys const& keys, std::span<RowId const> rows, kernels::OptimizerStep const& step,
                     GradientOf gradient_of) {
  std::size_t const dim = options_.dim;
  auto const common = rows_.step(step);
  std::atomic<std::uint64_t> num_dropped = 0;
  workers_->in_ranges_of(keys.size(), dim * sizeof(float), [&](std::size_t first, std::size_t end) {
    std::vector<float> sum(dim), scratch(options_.hot_count > 0 ? dim : 0);
    std::size_t num_rowless = 0;
    for_each_row(
        rows, first, end, [&](std::size_t i) { rows_.update(rows[i], keys[i], common, gradient_of(i, sum), scratch); },
        [&](std::size_t /*i*/) { ++num_rowless; });
    num_dropped += num_rowless;
  });
  // The statistics of a table are sums over its stripes, so any stripe will do.
  stripes_.front().statistics.dropped_gradients += num_dropped;
}

void CpuTable::update(Keys const& keys, std::span<RowId const> rows, std::span<float const> gradients,
                      kernels::OptimizerStep const& step) {
  expect_one_each(keys, rows.size(), "rows");
  std::size_t const dim = options_.dim;
  expect_values(keys, gradients.size(), dim, "gradients");
  std::lock_guard const lock(mutex_);
  learn(keys, rows, step, [&](std::size_t i, std::span<float> /*sum*/) { return gradients.subspan(i * dim, dim); });
}

void CpuTable::update_bags(Keys const& keys, std::span<RowId const> rows, Members const& members, Bags const& bags,
                           std::span<float const> gradients, kernels::OptimizerStep const& step) {
  expect_one_each(keys, rows.size(), "rows");
  std::size_t const dim = options_.dim, num_bags = count_bags_on_host(expect_members(keys, members), bags);
  comm::expects(gradients.size() == num_bags * dim, "gradients do not have a vector for each bag");
  std::lock_guard const lock(mutex_);
  MemberSums const sums(members, bags, dim, gradients, *workers_);
  learn(keys, rows, step, [&](std::size_t i, std::span<float> sum) -> std::span<float const> {
    sums.add_up(i, sum);
    return sum;
  });
}

void CpuTable::erase(Keys const& keys) {
  expect_one_each(keys, keys.size(), "keys");
  std::lock_guard const lock(mutex_);
  batch_.sort(keys, stripe_map_, *workers_);
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
               if (!is_row(word) || !is_expired(rows_.notes(row_of(word)))) return;
               stripe.index.erase(keys[i], hash);
               free_row(stripe, word);
               ++stripe.statistics.expired;
             });
}

void CpuTable::free_row(Stripe& stripe, RowWord word) {
  if (precision_of(row_of(word)) == Precision::kBfloat16) --stripe.num_cold;
  stripe.rows.free(row_of(word));
  --stripe.num_rows;
}

void CpuTable::clear() {
  std::lock_guard const lock(mutex_);
  // Make the new stripes first: if memory runs out, nothing has changed.
  auto fresh = make_stripes();
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    fresh[i].statistics = stripes_[i].statistics;
    fresh[i].statistics.erased += stripes_[i].num_rows;
    fresh[i].statistics.forgotten += stripes_[i].num_pending;
  }
  stripes_ = std::move(fresh);
  reset_queues();
  rows_.clear();
  segments_.trim();
}

template <class Announce, class Visit>
void CpuTable::in_stripes(Announce announce, Visit visit) {
  batch_.for_each_stripe(*workers_, [&](std::size_t number) {
    auto& stripe = stripes_[number];
    auto const keys = batch_.of_stripe(number);
    for (std::size_t j = 0; j < keys.size(); ++j) {
      if (j + kKeysAhead < keys.size()) stripe.index.prefetch(batch_.hash(keys[j + kKeysAhead]));
      if (j + kRowsAhead < keys.size()) announce(keys[j + kRowsAhead]);
      visit(stripe, keys[j], batch_.hash(keys[j]));
    }
  });
}

void CpuTable::expect_row(RowId row) const {
  if (!rows_.has(row)) {
    throw comm::UsageError("row " + std::to_string(static_cast<std::uint32_t>(row)) + " is not of this table");
  }
}

}  // namespace headway::embedding
