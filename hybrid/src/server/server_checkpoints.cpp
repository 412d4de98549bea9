// SPDX-License-Identifier: Apache-2.0

// Checkpoints of a parameter server.
//
// Idea: a server writes its own rows into a file of a folder that all roles see, so large tables pass through no other
// process. The dense worker that asked writes the manifest, after all servers have written (headway.embedding). A file
// is that of a rank of a collection with as many ranks as there are servers.
//
// Example: 2 servers, step 10. The request may come before the last part of step 9 was applied, and is kept until then.
// Each server writes its file, with the mutex locked: rows have all steps below 10, and no part of step 10.
//
// Workers that count steps of their own have no common step. A server writes at once then, between two updates, and the
// generation goes on.
//
// A load has two phases, as several servers take part: all read into new tables, then all replace the old ones.
//
// Invariants: a save or load that fails has changed nothing. A load ends the generation, since batches that were looked
// up before belong to other rows. After a save of a common step, dense workers begin a new generation
// (HybridTables.save() in Python).
// While a server writes or reads a file, it answers nothing.
// Complexity: each record is written or read once. A load needs the memory of the old and of the new tables.

#include "headway/hybrid/checkpoint_messages.hpp"
#include "headway/hybrid/parameter_server.hpp"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace headway::hybrid {

void ParameterServer::save(Request& request) {
  auto const save = decode_save(request.body());
  std::unique_lock lock(mutex_);
  if (!ledger_->options().shares_clock) {  // There is no common step to wait for.
    held_save_.emplace(0, std::move(request));
    return write_if_due();
  }
  base::expects(save.step >= ledger_->num_applied(), "a checkpoint of step " + std::to_string(save.step) +
                                                         ": the server has applied steps below " +
                                                         std::to_string(ledger_->num_applied()));
  base::expects(!held_save_.has_value(), "another checkpoint waits for its step");
  held_save_.emplace(save.step, std::move(request));
  ledger_->end_at(save.end);
  last_worker_.reset();
  write_if_due();
  advance(lock);
}

void ParameterServer::write_if_due() {
  if (!held_save_ || held_save_->first > ledger_->num_applied()) return;
  auto request = std::move(std::exchange(held_save_, std::nullopt)->second);
  auto const path = decode_save(request.body()).path;
  if (ledger_->options().shares_clock) saved_step_ = ledger_->num_applied();
  std::lock_guard const alone(table_calls_);  // Lookups ahead may be under way.
  try {
    request.reply(write_tables(path));
  } catch (std::exception const& error) {  // The table has not changed.
    ::unlink(path.c_str());
    request.refuse(ReplyCode::kFailed, error.what());
  }
}

Body ParameterServer::write_tables(std::string const& path) const {
  embedding::RecordFileWriter writer(path);
  std::vector<SavedTable> saved;
  std::vector<std::size_t> num_blocks;  // (merged tables) Of this table and those before.
  for (auto const& table : tables_) {
    writer.write_table(*table);
    saved.push_back({.dim = table->dim(), .state_size = table->state_size(), .blocks = {}});
    num_blocks.push_back(writer.num_blocks());
  }
  auto const blocks = writer.finish();
  for (std::size_t merged = 0, block = 0; merged < saved.size(); ++merged) {
    while (block < num_blocks[merged]) saved[merged].blocks.push_back(blocks[block++]);
  }
  return encode_saved(saved);
}

void ParameterServer::load(Request& request) {
  auto const load = decode_load(request.body());
  base::expects(load.tables.size() == tables_.size(),
                "a checkpoint is loaded into " + std::to_string(load.tables.size()) +
                    " merged tables, and the server has " + std::to_string(tables_.size()));
  base::expects(load.index < load.count,
                "there is no server " + std::to_string(load.index) + " of " + std::to_string(load.count));
  base::expects(load.step < std::numeric_limits<std::uint32_t>::max(), "the step of the checkpoint is too large");
  loaded_.reset();
  auto loaded = std::make_unique<Loaded>();
  loaded->step = load.step;
  std::vector<embedding::RecordTarget> targets;
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    auto const& of_table = load.tables[merged];
    loaded->tables.push_back(of_table.table_ids.empty() ? nullptr
                                                        : embedding::make_concurrent_table(merged_[merged].options));
    if (of_table.table_ids.empty()) continue;
    targets.push_back({.table = loaded->tables.back().get(),
                       .table_ids = of_table.table_ids,
                       .initial_state = of_table.initial_state});
  }
  embedding::load_records(load.sources, targets, load.index, load.count);
  std::vector<std::uint64_t> evicted(tables_.size());
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    auto* const table = loaded->tables[merged].get();
    if (table == nullptr) continue;
    evicted[merged] = table->evict_beyond_limit();
    keep_others(merged, load.tables[merged].table_ids, *table);
  }
  loaded_ = std::move(loaded);
  request.reply(encode_evicted(evicted));
}

void ParameterServer::keep_others(std::size_t merged, std::vector<std::uint32_t> const& loaded,
                                  embedding::Table& table) const {
  embedding::RecordTarget target{.table = &table, .table_ids = {}, .initial_state = {}};
  for (auto const id : merged_[merged].tables) {
    if (std::ranges::find(loaded, id) == loaded.end()) target.table_ids.push_back(id);
  }
  if (!target.table_ids.empty()) embedding::copy_records(*tables_[merged], target);
}

void ParameterServer::take_loaded(Request& request) {
  base::expects(loaded_ != nullptr, "the server has loaded no checkpoint");
  auto const loaded = std::exchange(loaded_, nullptr);
  auto const step = static_cast<std::uint32_t>(loaded->step);
  bool const keeps_any = std::ranges::any_of(loaded->tables, [](auto const& table) { return table == nullptr; });
  auto const table_step = keeps_any ? std::max(table_step_, step) : step;  // Steps of a table never go back.
  for (auto const& table : loaded->tables) {
    if (table != nullptr) table->resume_step(table_step, step);
  }
  end_generation(false);
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    if (loaded->tables[merged] != nullptr) tables_[merged] = std::move(loaded->tables[merged]);
  }
  table_step_ = table_step;
  loaded_step_ = step;
  ledger_.reset();
  request.reply({});
}

}  // namespace headway::hybrid
