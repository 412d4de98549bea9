// SPDX-License-Identifier: Apache-2.0

// Row indices of small tables, which dense workers keep in step.
//
// Idea: a dense worker that gets its batches from embedding workers must not see ids. So a server numbers the ids of a
// small table in the order in which they first come. Embedding workers ask once for each id, and dense workers have the
// index as the key of the row. The server's table has the rows of the last checkpoint alone: before the next one, a
// dense worker gives the present rows back by their indices.
//
// Example: ids 70, 5, 70 and 9 get the indices 0, 1, 0 and 2. With 2 servers, server 1 has the indices 1, 3 and 5 of
// its ids for dense workers (EmbeddingClient multiplies).
//
// Invariants: an index never changes while the server lives, also over a load. An answer reads the table and does not
// change it: a row that is not there has its initial embedding. Requests are alone, so the table rests meanwhile.
// Complexity: O(dim) for an id; memory of 50 bytes or so for each id that has come.

#include "headway/hybrid/indexed_rows.hpp"
#include "headway/hybrid/parameter_server.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace headway::hybrid {

namespace {

/// Ids of a table that may have an index. A small table has few rows, so more are a mistake.
constexpr std::size_t kMostIndices = std::size_t{1} << 20;

}  // namespace

embedding::ConcurrentTable& ParameterServer::small_table(std::size_t merged) const {
  base::expects(merged_[merged].tables.size() == 1, "merged table " + std::to_string(merged) + " has several tables");
  return *tables_[merged];
}

void ParameterServer::hand_out_rows(Request& request) {
  base::expects(!configuration_.empty(), "the server has no tables yet");
  auto const queries = decode_row_queries(request.body(), tables_.size());
  std::size_t num_floats = 0;
  for (auto const& each : queries) {
    auto const& table = small_table(each.merged);
    num_floats += each.ids.size() * (table.dim() + table.state_size());
    base::expects(row_indices_[each.merged].ids.size() + each.ids.size() <= kMostIndices,
                  "merged table " + std::to_string(each.merged) + " has too many ids for a small table: over " +
                      std::to_string(kMostIndices));
  }
  base::expects(num_floats * sizeof(float) <= options_.max_rows_bytes, "too many rows of small tables were asked for");
  std::vector<IndexedRows> answers;
  for (auto const& each : queries) answers.push_back(rows_with_indices(each.merged, each.ids));
  request.reply(encode_indexed_rows(answers));
}

IndexedRows ParameterServer::rows_with_indices(std::size_t merged, std::span<std::uint64_t const> ids) {
  auto& table = small_table(merged);
  auto const dim = table.dim(), state_size = table.state_size(), count = ids.size();
  IndexedRows rows{.are_stored = std::vector<std::uint32_t>(count),
                   .counts = std::vector<std::uint32_t>(count),
                   .steps = std::vector<std::uint32_t>(count),
                   .embeddings = std::vector<float>(count * dim),
                   .states = std::vector<float>(count * state_size)};
  embedding::Keys const keys{.ids = ids, .table = merged_[merged].tables.front()};
  std::vector<embedding::RowId> found(count);
  std::vector<embedding::KeyStatus> statuses(count);
  table.find(keys, found, statuses);
  table.gather(keys, found, rows.embeddings);
  std::vector<std::uint64_t> stored;
  for (std::size_t i = 0; i < count; ++i) {
    if (statuses[i] == embedding::KeyStatus::kFound) stored.push_back(ids[i]);
  }
  auto const records = table.export_records({.ids = stored, .table = keys.table});
  for (std::size_t i = 0, next = 0; i < count; ++i) {
    if (statuses[i] != embedding::KeyStatus::kFound) continue;
    rows.are_stored[i] = 1;
    rows.counts[i] = records.counts[next];
    rows.steps[i] = records.steps[next];
    std::copy_n(records.states.data() + next * state_size, state_size, rows.states.data() + i * state_size);
    ++next;
  }
  auto& [index_of, all] = row_indices_[merged];
  for (auto const id : ids) {
    auto const [entry, is_new] = index_of.try_emplace(id, static_cast<std::uint32_t>(all.size()));
    if (is_new) all.push_back(id);
    rows.indices.push_back(entry->second);
  }
  return rows;
}

void ParameterServer::store_rows(Request& request) {
  auto const tables = decode_rows_to_store(request.body(), tables_.size());
  std::vector<std::pair<std::size_t, embedding::Records>> all;
  for (auto const& [merged, rows] : tables) {
    auto const& table = small_table(merged);
    auto const& ids = row_indices_[merged].ids;
    auto const count = rows.indices.size();
    base::expects(rows.embeddings.size() == count * table.dim() && rows.states.size() == count * table.state_size(),
                  "rows of merged table " + std::to_string(merged) + " have another size");
    embedding::Records records{.ids = {},
                               .tables = std::vector<std::uint32_t>(count, merged_[merged].tables.front()),
                               .counts = rows.counts,
                               .steps = rows.steps,
                               .embeddings = rows.embeddings,
                               .states = rows.states};
    for (auto const index : rows.indices) {
      base::expects(index < ids.size(),
                    "merged table " + std::to_string(merged) + " has no row " + std::to_string(index));
      records.ids.push_back(ids[index]);
    }
    all.emplace_back(merged, std::move(records));
  }
  for (auto const& [merged, records] : all) {
    std::vector<embedding::KeyStatus> statuses(records.ids.size());
    tables_[merged]->import_records(records, statuses);
  }
  request.reply({});
}

}  // namespace headway::hybrid
