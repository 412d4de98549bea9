// SPDX-License-Identifier: Apache-2.0

// Loading of record files: which records of a block a rank takes, and the table that gets them.
//
// Example: a block was written when the tables 1 and 2 were merged. Now table 1 is merged with 3, table 2 stands alone,
//   and two ranks share the keys. Rank 0 gives its half of the records of table 1 to one target, and of table 2 to
//   another.
// Invariants: a record goes to one target of one rank. Rows of all blocks come before keys that wait for a row.
//
// Complexity: a block is copied only if some of its records are for another target or rank.

#include "headway/base/status.hpp"
#include "headway/embedding/record_file.hpp"
#include "headway/embedding/routing.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace headway::embedding {

namespace {

/// Positions of the records that a rank owns and that are for the target.
std::vector<std::size_t> chosen_of(Records const& records, RecordTarget const& target, std::uint32_t rank,
                                   std::uint32_t num_ranks) {
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < records.ids.size(); ++i) {
    Key const key{.id = records.ids[i], .table = records.tables[i]};
    if (std::ranges::find(target.numbers, key.table) == target.numbers.end()) continue;
    if (num_ranks == 1 || owner_of(virtual_bucket_of(hash_of(key)), num_ranks) == rank) chosen.push_back(i);
  }
  return chosen;
}

/// The first `new_width` columns of some rows of a matrix with `width` columns.
template <class Value>
std::vector<Value> rows_of(std::vector<Value> const& matrix, std::size_t width, std::span<std::size_t const> rows,
                           std::size_t new_width) {
  std::vector<Value> result;
  if (matrix.empty()) return result;
  result.reserve(rows.size() * new_width);
  for (auto const row : rows) {
    auto const begin = matrix.begin() + static_cast<std::ptrdiff_t>(row * width);
    result.insert(result.end(), begin, begin + static_cast<std::ptrdiff_t>(new_width));
  }
  return result;
}

/// @throws std::runtime_error if there is no room for a record
void import_rows(Table& table, Records const& records) {
  std::vector<KeyStatus> statuses(records.ids.size());
  table.import_records(records, statuses);
  auto const num_refused = std::ranges::count(statuses, KeyStatus::kNoRoom);
  if (num_refused == 0) return;
  throw std::runtime_error("a table has no room for " + std::to_string(num_refused) + " of " +
                           std::to_string(statuses.size()) + " records of a checkpoint");
}

void import_chosen(Records const& records, RecordSource const& source, RecordTarget const& target,
                   std::span<std::size_t const> chosen) {
  auto& table = *target.table;
  Records part;
  part.ids = rows_of(records.ids, 1, chosen, 1);
  part.tables = rows_of(records.tables, 1, chosen, 1);
  part.counts = rows_of(records.counts, 1, chosen, 1);
  if (source.block.are_pending) return table.import_pending(part);
  bool const is_new = target.initial_state.has_value();
  base::expects(source.dim == table.dim(), "records have embeddings of dim " + std::to_string(source.dim) +
                                               ", and not " + std::to_string(table.dim()));
  base::expects(is_new || table.state_size() == 0 || source.state_size == table.state_size(),
                "records have " + std::to_string(source.state_size) + " floats of optimizer state, and not " +
                    std::to_string(table.state_size()));
  part.steps = rows_of(records.steps, 1, chosen, 1);
  part.embeddings = rows_of(records.embeddings, source.dim, chosen, source.dim);
  if (is_new) {
    part.states.assign(chosen.size() * table.state_size(), *target.initial_state);
  } else {
    part.states = rows_of(records.states, source.state_size, chosen, table.state_size());
  }
  import_rows(table, part);
}

/// Imports the records of a block into their tables.
void import_block(Records const& records, RecordSource const& source, std::span<RecordTarget const> targets,
                  std::uint32_t rank, std::uint32_t num_ranks) {
  for (auto const& target : targets) {
    auto const chosen = chosen_of(records, target, rank, num_ranks);
    bool const takes_all = chosen.size() == records.ids.size() && source.dim == target.table->dim() &&
                           source.state_size == target.table->state_size() && !target.initial_state;
    if (takes_all && !source.block.are_pending) {
      import_rows(*target.table, records);
    } else if (!chosen.empty()) {
      import_chosen(records, source, target, chosen);
    }
  }
}

}  // namespace

void load_records(std::span<RecordSource const> sources, std::span<RecordTarget const> targets, std::uint32_t rank,
                  std::uint32_t num_ranks) {
  std::vector<RecordSource const*> order;
  for (bool const are_pending : {false, true}) {
    for (auto const& source : sources) {
      if (source.block.are_pending == are_pending) order.push_back(&source);
    }
  }
  std::future<Records> next;
  auto const read = [&](std::size_t i) {
    if (i < order.size()) next = std::async(std::launch::async, read_records, std::cref(*order[i]));
  };
  read(0);
  for (std::size_t i = 0; i < order.size(); ++i) {
    Records const records = next.get();
    read(i + 1);
    import_block(records, *order[i], targets, rank, num_ranks);
  }
}

}  // namespace headway::embedding
