// SPDX-License-Identifier: Apache-2.0

// Import of records: which of them a rank takes, and the table that gets them. Files and states share it.
//
// Example: records were written when the tables 1 and 2 were merged. Now table 1 is merged with 3, table 2 stands
// alone, and two ranks share the keys. Rank 0 gives its half of the records of table 1 to one target, and of table 2
// to another.
// Invariant: a record goes to one target of one rank.
// Complexity: a record is copied once, into the memory that Table::import_records() takes.

#include "headway/embedding/record_import.hpp"

#include "headway/base/status.hpp"
#include "headway/embedding/routing.hpp"

#include <algorithm>
#include <string>

namespace headway::embedding {

namespace {

/// Positions of the records that a rank owns and that are for the target.
std::vector<std::size_t> chosen_of(RecordColumns const& records, RecordTarget const& target, std::uint32_t rank,
                                   std::uint32_t num_ranks) {
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < records.ids.size(); ++i) {
    Key const key = records[i];
    if (std::ranges::find(target.table_ids, key.table) == target.table_ids.end()) continue;
    if (num_ranks == 1 || owner_of(virtual_bucket_of(hash_of(key)), num_ranks) == rank) chosen.push_back(i);
  }
  return chosen;
}

/// The first `new_width` columns of some rows of a matrix with `width` columns.
template <class Value>
std::vector<Value> rows_of(std::span<Value const> matrix, std::size_t width, std::span<std::size_t const> rows,
                           std::size_t new_width) {
  std::vector<Value> result;
  if (matrix.empty()) return result;
  result.reserve(rows.size() * new_width);
  for (auto const row : rows) {
    auto const of_row = matrix.subspan(row * width, new_width);
    result.insert(result.end(), of_row.begin(), of_row.end());
  }
  return result;
}

void import_rows(Table& table, Records const& records) {
  std::vector<KeyStatus> statuses(records.ids.size());
  table.import_records(records, statuses);
  auto const num_refused = std::ranges::count(statuses, KeyStatus::kNoRoom);
  if (num_refused == 0) return;
  throw NoRoomForRecords("there is no room for " + std::to_string(num_refused) + " of " +
                         std::to_string(statuses.size()) + " records");
}

void import_chosen(RecordColumns const& records, RecordTarget const& target, std::span<std::size_t const> chosen) {
  auto& table = *target.table;
  Records part;
  part.ids = rows_of(records.ids, 1, chosen, 1);
  part.tables = rows_of(records.tables, 1, chosen, 1);
  if (records.tables.empty()) part.tables.assign(chosen.size(), records.table);
  part.counts = rows_of(records.counts, 1, chosen, 1);
  if (records.are_pending) return table.import_pending(part);
  bool const resets_state = target.initial_state.has_value();
  base::expects(records.dim == table.dim(), "records have embeddings of dim " + std::to_string(records.dim) +
                                                ", and not " + std::to_string(table.dim()));
  base::expects(resets_state || table.state_size() == 0 || records.state_size == table.state_size(),
                "records have " + std::to_string(records.state_size) + " floats of optimizer state, and not " +
                    std::to_string(table.state_size()));
  part.steps = rows_of(records.steps, 1, chosen, 1);
  part.embeddings = rows_of(records.embeddings, records.dim, chosen, records.dim);
  if (resets_state) {
    part.states.assign(chosen.size() * table.state_size(), *target.initial_state);
  } else {
    part.states = rows_of(records.states, records.state_size, chosen, table.state_size());
  }
  import_rows(table, part);
}

}  // namespace

void import_records_of_rank(RecordColumns const& records, std::span<RecordTarget const> targets, std::uint32_t rank,
                            std::uint32_t num_ranks) {
  for (auto const& target : targets) {
    auto const chosen = chosen_of(records, target, rank, num_ranks);
    if (!chosen.empty()) import_chosen(records, target, chosen);
  }
}

}  // namespace headway::embedding
