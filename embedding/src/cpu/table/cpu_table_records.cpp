// SPDX-License-Identifier: Apache-2.0

// Listing, export and import of a CPU table's records, for checkpoints.
//
// Idea: a checkpoint lists the keys of a range of virtual buckets, in the order (bucket, table, id), then exports their
// records in pieces. The order depends on the keys alone, so tables with equal contents give equal listings. list()
// visits each stripe on one thread and lets KeyListing sort. export_records() looks the keys up and copies what the
// rows hold. import_records() inserts the keys regardless of max_rows, and writes what the records hold into the rows.
//
// Example: a rank of two owns buckets 0 to 8,191 of 16,384. list(0, 8192) gives its keys. A run with four ranks reads
//   the same records in two parts, list(0, 4096) and list(4096, 8192).
//
// Invariants: an expired row is a record until it is removed, so a table that imports the records is the same.
//   A record holds the embedding as float32. The importing table chooses the precision by the record's count.
//   Pending keys are listed with their counts; they have no other state.
// Complexity: list() is O(slots of the table) for any range; export is one lookup and one copy for each key.

#include "cpu/deduplication/cpu_deduplicator.hpp"
#include "cpu/table/cpu_table.hpp"
#include "cpu/table/cpu_table_insertion.hpp"
#include "cpu/table/key_listing.hpp"
#include "expect_batch.hpp"
#include "headway/base/status.hpp"
#include "headway/embedding/routing.hpp"
#include "table_options.hpp"

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

namespace headway::embedding {

template <class Wanted>
Records CpuTable::list(std::uint32_t first_bucket, std::uint32_t end_bucket, Wanted wanted) const {
  expect_buckets(first_bucket, end_bucket);
  KeyListing listing(first_bucket, end_bucket, stripes_.size());
  std::shared_lock const lock(mutex_);
  thread_pool_->run(stripes_.size(), [&](std::size_t index) {
    std::vector<ListedKey> found;
    stripes_[index].index.for_each([&](Key key, RowWord word) {
      if (!wanted(word)) return;
      std::uint32_t const bucket = virtual_bucket_of(hash_of(key));
      if (!listing.wants(bucket)) return;
      found.push_back({bucket, key.table, key.id, is_pending(word) ? pending_count_of(word) : 0});
    });
    listing.put(index, found);
  });
  // `wanted` is is_row or is_pending; only the latter is true here.
  return listing.sorted(*thread_pool_,
                        wanted(RowWord::kPending) ? KeyListing::Columns::kCounts : KeyListing::Columns::kKeys);
}

Records CpuTable::list(std::uint32_t first_bucket, std::uint32_t end_bucket) const {
  return list(first_bucket, end_bucket, is_row);
}

Records CpuTable::list_pending(std::uint32_t first_bucket, std::uint32_t end_bucket) const {
  return list(first_bucket, end_bucket, is_pending);
}

Records CpuTable::export_records(Keys const& keys) const {
  std::size_t const dim = options_.dim, width = state_size();
  Records records;
  records.ids.assign(keys.ids.begin(), keys.ids.end());
  records.tables.resize(keys.size());
  records.counts.resize(keys.size());
  records.steps.resize(keys.size());
  records.embeddings.resize(keys.size() * dim);
  records.states.resize(keys.size() * width);
  std::vector<RowId> rows(keys.size());
  std::shared_lock const lock(mutex_);
  auto const all = indices();
  thread_pool_->in_ranges(keys.size(), [&](std::size_t /*range*/, std::size_t first, std::size_t end) {
    // Not find(): it hides expired rows, which must be exported too.
    StagedFind(keys, key_kernels_, all).run(first, end, [&](std::size_t i, RowWord word) { rows[i] = row_of(word); });
    for (std::size_t i = first; i < end; ++i) {
      if (rows[i] == RowId::kNone) {
        throw base::UsageError("key " + std::to_string(keys[i].id) + " of table " + std::to_string(keys[i].table) +
                               " has no row to export");
      }
      // The metadata of a row are what a table keeps beside its weights: count, step of the last lookup, and the one
      // float of a row-wise optimizer.
      auto const& metadata = rows_.metadata(rows[i]);
      records.tables[i] = keys[i].table;
      records.counts[i] = metadata.count;
      records.steps[i] = metadata.step;
      rows_.read(rows[i], std::span(records.embeddings).subspan(i * dim, dim));
      auto const state = rows_.state(rows[i]);
      std::ranges::copy(state, records.states.begin() + static_cast<std::ptrdiff_t>(i * width));
      if (width > state.size()) records.states[(i + 1) * width - 1] = metadata.state;
    }
  });
  return records;
}

void CpuTable::import_records(Records const& records, std::span<KeyStatus> statuses) {
  auto const keys = records.keys();
  std::size_t const dim = options_.dim, width = state_size();
  expect_one_each(keys, records.tables.size(), "tables");
  expect_one_each(keys, records.counts.size(), "counts");
  expect_one_each(keys, records.steps.size(), "steps");
  expect_values(keys, records.embeddings.size(), dim, "embeddings");
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
        rows_.write(row, std::span(records.embeddings).subspan(i * dim, dim));
        auto const state = rows_.state(row);
        std::copy_n(records.states.begin() + static_cast<std::ptrdiff_t>(i * width), state.size(), state.begin());
        // The last column of `states` is the scalar of a row-wise optimizer.
        rows_.metadata(row) = {.count = records.counts[i],
                               .step = records.steps[i],
                               .state = width > state.size() ? records.states[(i + 1) * width - 1] : 0};
      });
}

void CpuTable::import_pending(Records const& records) {
  auto const keys = records.keys();
  expect_one_each(keys, records.tables.size(), "tables");
  expect_one_each(keys, records.counts.size(), "counts");
  std::lock_guard const lock(mutex_);
  batch_.sort(keys, stripe_map_, *thread_pool_);
  in_stripes([](std::size_t) {},
             [&](Stripe& stripe, std::size_t i, Hash hash) {
               auto* const word = stripe.index.find_or_insert(keys[i], hash, [&] {
                 ++stripe.num_pending;
                 return pending_word(0);
               });
               if (is_pending(*word)) *word = pending_word(records.counts[i]);
             });
}

// A key may occur several times in the records, and then its last record counts. With two precisions (hot_count) a
// row's precision is chosen when it is inserted, at the key's first record, so that one needs the count of the last.
// Example: records of key 7 with counts 3 and 90: the row is inserted with 90, and written from the second record
// alone.
CpuTable::LastOfEach CpuTable::last_of_each(Records const& records) {
  std::size_t const num_records = records.ids.size();
  if (options_.hot_count == 0) return {.counts = records.counts, .is_last = std::vector<bool>(num_records, true)};
  LastOfEach last{.counts = std::vector<std::uint32_t>(num_records), .is_last = std::vector<bool>(num_records)};
  auto const unique = CpuDeduplicator(thread_pool_).deduplicate(records.keys());
  for (std::size_t index = 0; index < unique.size(); ++index) {
    std::size_t const first = unique.csr_indices[unique.csr_offsets[index]];
    std::size_t const at = unique.csr_indices[unique.csr_offsets[index + 1] - 1];
    last.counts[first] = records.counts[at];
    last.is_last[at] = true;
  }
  return last;
}

}  // namespace headway::embedding
