// SPDX-License-Identifier: Apache-2.0

// Loading of record files: the next block is read while one is imported.
//
// Invariant: rows of all blocks come before keys that wait for a row, since a key with a row never waits.
// Complexity: two blocks are in memory at a time.

#include "headway/embedding/record_file.hpp"

#include <future>

namespace headway::embedding {

namespace {

RecordColumns columns_of(Records const& records, RecordSource const& source) {
  return {.ids = records.ids,
          .tables = records.tables,
          .counts = records.counts,
          .steps = records.steps,
          .embeddings = records.embeddings,
          .states = records.states,
          .dim = source.dim,
          .state_size = source.state_size,
          .are_pending = source.block.are_pending};
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
    import_records_of_rank(columns_of(records, *order[i]), targets, rank, num_ranks);
  }
}

}  // namespace headway::embedding
