// Listing and export of a CPU table's records, for checkpoints. Import is in cpu_table.cpp (import_records).
//
// Idea: a checkpoint lists the keys of a range of virtual buckets, in the order (bucket, table, id), then exports their
// records in pieces. The order depends on the keys alone, so tables with equal contents give equal listings. list()
// visits each stripe on one thread and lets KeyListing sort. export_records() looks the keys up and copies what the
// rows hold.
//
// Example: a rank of two owns buckets 0 to 8,191 of 16,384. list(0, 8192) gives its keys. A run with four ranks reads
//   the same records in two parts, list(0, 4096) and list(4096, 8192).
//
// Invariants: an expired row is a record until it is removed, so a table that imports the records is the same.
//   A record holds the embedding as float32. The importing table chooses the precision by the record's count.
//   Pending keys are listed with their counts; they have no other state.
// Complexity: list() is O(slots of the table) for any range; export is one lookup and one copy for each key.

#include "cpu/cpu_table.hpp"
#include "cpu/key_listing.hpp"
#include "headway/comm/status.hpp"
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
  workers_->run(stripes_.size(), [&](std::size_t number) {
    std::vector<ListedKey> found;
    stripes_[number].index.for_each([&](Key key, RowWord word) {
      if (!wanted(word)) return;
      std::uint32_t const bucket = virtual_bucket_of(hash_of(key));
      if (!listing.wants(bucket)) return;
      found.push_back({bucket, key.table, key.id, is_pending(word) ? pending_count_of(word) : 0});
    });
    listing.put(number, found);
  });
  return listing.sorted(*workers_,
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
  records.vectors.resize(keys.size() * dim);
  records.states.resize(keys.size() * width);
  std::vector<RowId> rows(keys.size());
  std::shared_lock const lock(mutex_);
  auto const all = indices();
  workers_->in_ranges(keys.size(), [&](std::size_t /*range*/, std::size_t first, std::size_t end) {
    // Not find(): it hides expired rows, which must be exported too.
    StagedFind(keys, key_kernels_, all).run(first, end, [&](std::size_t i, RowWord word) { rows[i] = row_of(word); });
    for (std::size_t i = first; i < end; ++i) {
      if (rows[i] == RowId::kNone) {
        throw comm::UsageError("key " + std::to_string(keys[i].id) + " of table " + std::to_string(keys[i].table) +
                               " has no row to export");
      }
      auto const& notes = rows_.notes(rows[i]);
      records.tables[i] = keys[i].table;
      records.counts[i] = notes.count;
      records.steps[i] = notes.step;
      rows_.read(rows[i], std::span(records.vectors).subspan(i * dim, dim));
      auto const state = rows_.state(rows[i]);
      std::ranges::copy(state, records.states.begin() + static_cast<std::ptrdiff_t>(i * width));
      if (width > state.size()) records.states[(i + 1) * width - 1] = notes.state;
    }
  });
  return records;
}

}  // namespace headway::embedding
