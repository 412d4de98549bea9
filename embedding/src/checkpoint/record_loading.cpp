// SPDX-License-Identifier: Apache-2.0

// Loading of record files: the next block is read while one is imported.
//
// Invariant: rows of all blocks come before keys that wait for a row, since a key with a row never waits.
// Complexity: two blocks are in memory at a time.

#include "headway/embedding/record_file.hpp"

#include <future>
#include <utility>

namespace headway::embedding {

namespace {

RecordColumns columns_of(Records const& records, std::size_t dim, std::size_t state_size, bool are_pending) {
  return {.ids = records.ids,
          .tables = records.tables,
          .counts = records.counts,
          .steps = records.steps,
          .embeddings = records.embeddings,
          .states = records.states,
          .dim = dim,
          .state_size = state_size,
          .are_pending = are_pending};
}

}  // namespace

void copy_records(Table const& table, RecordTarget const& target) {
  auto const size = table.size();
  for (bool const are_pending : {false, true}) {
    for (auto const& [first, end] : bucket_ranges(are_pending ? size.pending : size.rows)) {
      auto listed = are_pending ? table.list_pending(first, end) : table.list(first, end);
      if (listed.ids.empty()) continue;
      auto const records = are_pending ? std::move(listed) : table.export_records(listed.keys());
      import_records_of_rank(columns_of(records, table.dim(), table.state_size(), are_pending), {&target, 1}, 0, 1);
    }
  }
}

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
    auto const& source = *order[i];
    import_records_of_rank(columns_of(records, source.dim, source.state_size, source.block.are_pending), targets, rank,
                           num_ranks);
  }
}

}  // namespace headway::embedding
