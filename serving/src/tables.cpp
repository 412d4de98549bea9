// SPDX-License-Identifier: Apache-2.0
#include "headway/serving/tables.hpp"

#include "headway/embedding/record_file.hpp"
#include "headway/embedding/routing.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

namespace headway::serving {

namespace {

/// Equal for tables that may be merged.
auto settings_of(ServedTable const& table) {
  auto const& values = table.initializer.values();
  return std::tuple(table.dim, table.time_to_live, table.reads_unknown_as_zeros, values.law, values.base, values.width,
                    values.seed);
}

/// The blocks that may have records of a rank.
std::vector<embedding::RecordSource> sources_of(SavedTables const& saved, std::filesystem::path const& folder,
                                                std::uint32_t rank, std::uint32_t num_ranks) {
  bool const are_routed_alike = saved.routing_version == embedding::kRoutingVersion;
  auto const first = embedding::first_bucket_of(rank, num_ranks), end = embedding::first_bucket_of(rank + 1, num_ranks);
  std::vector<embedding::RecordSource> sources;
  for (auto const& block : saved.blocks) {
    if (are_routed_alike && (block.first_bucket >= end || block.end_bucket <= first)) continue;
    sources.push_back({.path = (folder / "tables" / block.file).string(),
                       .block = {.offset = block.offset,
                                 .num_bytes = block.num_bytes,
                                 .crc32 = block.crc32,
                                 .num_keys = block.num_keys,
                                 .first_bucket = block.first_bucket,
                                 .end_bucket = block.end_bucket},
                       .dim = block.dim,
                       .state_size = block.state_size});
  }
  return sources;
}

}  // namespace

MergedTables merge_tables(Manifest const& manifest) {
  MergedTables merged;
  std::vector<ServedTable const*> firsts;
  for (auto const& table : manifest.tables) {
    auto const found =
        std::ranges::find_if(firsts, [&](auto const* first) { return settings_of(*first) == settings_of(table); });
    merged.merged_of.push_back(static_cast<std::size_t>(found - firsts.begin()));
    if (found != firsts.end()) continue;
    firsts.push_back(&table);
    merged.dims.push_back(table.dim);
  }
  for (std::size_t each = 0; each < firsts.size(); ++each) {
    for (std::size_t feature = 0; feature < manifest.features.size(); ++feature) {
      if (merged.merged_of[manifest.features[feature].table] == each) merged.feature_of.push_back(feature);
    }
  }
  return merged;
}

std::vector<embedding::ReadTable> read_tables(Manifest const& manifest, std::filesystem::path const& folder, int rank,
                                              int num_ranks, std::shared_ptr<base::ThreadPool> const& thread_pool) {
  auto const merged = merge_tables(manifest);
  std::vector<embedding::ReadTable> tables(merged.dims.size());
  std::vector<std::shared_ptr<embedding::Table>> rows(tables.size());
  std::vector<embedding::RecordTarget> targets(tables.size());
  try {
    for (std::size_t i = 0; i < manifest.tables.size(); ++i) {
      auto const& served = manifest.tables[i];
      std::size_t const index = merged.merged_of[i];
      tables[index].tables.push_back(served.id);
      targets[index].table_ids.push_back(served.id);
      if (rows[index] != nullptr) continue;
      rows[index] = embedding::make_cpu_table({.dim = served.dim,
                                               .initializer = served.initializer,
                                               .time_to_live = served.time_to_live,
                                               .thread_pool = thread_pool});
      tables[index].reads_unknown_as_zeros = served.reads_unknown_as_zeros;
      targets[index].table = rows[index].get();
      targets[index].initial_state = 0;
    }
    // Rows expire by the step of the checkpoint.
    for (auto const& each : rows) each->resume_step(manifest.saved.step, manifest.saved.step);
    auto const own = static_cast<std::uint32_t>(rank), all = static_cast<std::uint32_t>(num_ranks);
    embedding::load_records(sources_of(manifest.saved, folder, own, all), targets, own, all);
  } catch (std::exception const& error) {
    throw PackageError((folder / "tables").string() + " cannot be read: " + error.what());
  }
  for (std::size_t index = 0; index < tables.size(); ++index) tables[index].rows = std::move(rows[index]);
  return tables;
}

}  // namespace headway::serving
