// SPDX-License-Identifier: Apache-2.0

// Checkpoints of a table on the GPU: lists of keys by virtual bucket, and export of records. All calls wait for the
// device. Import is in cuda_table_insertion.cu.
//
// A checkpoint is written in chunks of virtual buckets (routing.hpp), so that any number of ranks can read it back:
// list() names the keys of a range of buckets, and export_records() copies everything about some of them to the host.
// A scan of the whole key index finds the keys of a range; the kernel appends them in any order. They are sorted on
// the host by (bucket, table, id), so equal tables give equal lists.
//
// A pending key has a count of lookups, but no row yet. A cold row has few lookups: its embedding is bfloat16.
//
// Invariants: nothing changes the table between the two calls (the caller's duty), else export_records() may throw
// for a key that has left. Records hold float32 for all rows: a cold row is widened, which loses nothing.

#include "cuda/index/for_each_bucket.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/table/cuda_table.hpp"
#include "headway/base/status.hpp"
#include "headway/embedding/routing.hpp"
#include "table_options.hpp"

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

namespace headway::embedding {

template <class Wanted>
std::vector<CudaTable::Listed> CudaTable::list_if(std::uint32_t first_bucket, std::uint32_t end_bucket,
                                                  Wanted wanted) const {
  expect_buckets(first_bucket, end_bucket);
  Call const call(*this);  // Holds the table's lock, and orders the stream after earlier calls.
  cudaStream_t const stream = call.stream();
  auto const& state = wait(stream);
  // Room for all keys, since the share of this range is unknown. `state` is exact: wait() has just read it.
  DeviceBuffer<Listed> listed(std::size_t{state.num_rows} + state.num_pending, stream);
  DeviceBuffer<std::uint32_t> size(1, stream);
  base::check_cuda(cudaMemsetAsync(size.data(), 0, sizeof(std::uint32_t), stream), "cudaMemsetAsync");
  for_each_bucket_async(
      all_stripes(),
      [wanted, first_bucket, end_bucket, listed = listed.data(), size = size.data()] __device__(
          std::uint32_t /*stripe*/, WideBucket const* bucket) {
        for (std::size_t slot = 0; bucket != nullptr && slot < WideBucket::kNumSlots; ++slot) {
          RowWord const word = bucket->words[slot];
          if (!wanted(word)) continue;
          Key const key = bucket->key(slot);
          std::uint32_t const virtual_bucket = virtual_bucket_of(hash_of(key));
          if (virtual_bucket < first_bucket || virtual_bucket >= end_bucket) continue;
          listed[atomicAdd(size, 1U)] = {.id = key.id,
                                         .table = key.table,
                                         .bucket = virtual_bucket,
                                         .count = is_pending(word) ? pending_count_of(word) : 0};
        }
      },
      stream, "list");
  std::uint32_t num_listed = 0;
  copy_to_host(size, std::span(&num_listed, 1), stream);
  std::vector<Listed> entries(num_listed);
  copy_to_host(listed, std::span(entries), stream);
  std::ranges::sort(entries, {}, [](Listed const& entry) { return std::tuple(entry.bucket, entry.table, entry.id); });
  return entries;
}

Records CudaTable::list(std::uint32_t first_bucket, std::uint32_t end_bucket) const {
  Records records;
  for (auto const& entry : list_if(first_bucket, end_bucket, [] __device__(RowWord word) { return is_row(word); })) {
    records.ids.push_back(entry.id);
    records.tables.push_back(entry.table);
  }
  return records;
}

Records CudaTable::list_pending(std::uint32_t first_bucket, std::uint32_t end_bucket) const {
  Records records;
  for (auto const& entry :
       list_if(first_bucket, end_bucket, [] __device__(RowWord word) { return is_pending(word); })) {
    records.ids.push_back(entry.id);
    records.tables.push_back(entry.table);
    records.counts.push_back(entry.count);
  }
  return records;
}

Records CudaTable::export_records(Keys const& keys) const {
  std::size_t const num_keys = keys.size(), dim = options_.dim;
  std::size_t const width = state_size();  // Floats of optimizer state per row.
  Records records;
  records.ids.assign(keys.ids.begin(), keys.ids.end());
  records.tables.assign(keys.tables.begin(), keys.tables.end());
  if (keys.tables.empty()) records.tables.assign(num_keys, keys.table);
  records.counts.resize(num_keys);
  records.steps.resize(num_keys);
  records.embeddings.resize(num_keys * dim);
  records.states.resize(num_keys * width);
  if (num_keys == 0) return records;
  Call const call(*this);
  cudaStream_t const stream = call.stream();
  auto const ids = copy_to_device(std::span<std::uint64_t const>(records.ids), stream);
  auto const tables = copy_to_device(std::span<std::uint32_t const>(records.tables), stream);
  DeviceBuffer<RowId> rows(num_keys, stream);
  DeviceBuffer<std::uint32_t> counts(num_keys, stream), steps(num_keys, stream);
  DeviceBuffer<float> embeddings(num_keys * dim, stream), states(num_keys * width, stream);
  for_each_async(
      num_keys,
      [batch = view_of({.ids = ids.span(), .tables = tables.span()}), index = index(), table_rows = rows_.view(),
       rows = rows.data(), counts = counts.data(), steps = steps.data(),
       states = states.data()] __device__(std::uint64_t i) {
        RowId const row = row_of(find_word(index, batch.key(static_cast<std::uint32_t>(i))));
        rows[i] = row;
        if (row == RowId::kNone) return;
        counts[i] = table_rows.metadata(row).count;
        steps[i] = table_rows.metadata(row).step;
        // Record layout: the states per column first, then the one float of a row-wise optimizer, as Records::states
        // says.
        float* const to = states + i * (table_rows.state_size + (table_rows.is_row_wise ? 1 : 0));
        for (std::uint32_t j = 0; j < table_rows.state_size; ++j) to[j] = table_rows.state(row)[j];
        if (table_rows.is_row_wise) to[table_rows.state_size] = table_rows.row_state(row);
      },
      stream, "export metadata");
  for_each_quad_async(
      num_keys, rows_.view().num_quads(),
      [table_rows = rows_.view(), rows = rows.data(), embeddings = embeddings.data()] __device__(std::uint32_t i,
                                                                                                 std::uint32_t quad) {
        if (rows[i] == RowId::kNone) return;
        auto const values = table_rows.read(rows[i], quad);
        write_quad(embeddings + std::uint64_t{i} * table_rows.dim, quad, table_rows.dim, values);
      },
      stream, "export embeddings");
  std::vector<RowId> rows_on_host(num_keys);
  copy_to_host(rows, std::span(rows_on_host), stream);
  if (auto const missing = std::ranges::find(rows_on_host, RowId::kNone); missing != rows_on_host.end()) {
    auto const i = static_cast<std::size_t>(missing - rows_on_host.begin());
    throw base::UsageError("key " + std::to_string(records.ids[i]) + " of table " + std::to_string(records.tables[i]) +
                           " has no row to export");
  }
  copy_to_host(counts, std::span(records.counts), stream);
  copy_to_host(steps, std::span(records.steps), stream);
  copy_to_host(embeddings, std::span(records.embeddings), stream);
  copy_to_host(states, std::span(records.states), stream);
  return records;
}

}  // namespace headway::embedding
