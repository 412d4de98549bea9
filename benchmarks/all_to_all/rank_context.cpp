// SPDX-License-Identifier: Apache-2.0
#include "rank_context.hpp"

namespace headway::benchmarks {

std::vector<CallBuffers> RankContext::make_buffers(std::size_t bytes_per_rank, int lag) const {
  std::vector<CallBuffers> sets;
  for (int set = 0; set <= lag; ++set) {
    sets.emplace_back(settings.split, bytes_per_rank, identity.rank, identity.ranks, allocate);
  }
  return sets;
}

JsonObject RankContext::params(std::size_t bytes_per_rank, int lag) const {
  JsonObject params;
  params.add("ranks", identity.ranks).add("bytes_per_rank", bytes_per_rank).add("lag", lag);
  params.add("split", settings.split_name);
  if (settings.slot_bytes) params.add("slot_bytes", *settings.slot_bytes);
  // Result files keep older names: "pull_bytes" is `get_bytes`, and "engine" is `transport`.
  if (settings.get_bytes) params.add("pull_bytes", *settings.get_bytes);
  if (!settings.transport.empty()) params.add("engine", settings.transport);
  if (settings.registered) params.add("memory", "registered");
  return params;
}

void add_summary(JsonObject& point, SampleSummary const& summary, std::size_t bytes_per_rank) {
  point.add("median_s", summary.median_s).add("p5_s", summary.p5_s).add("p95_s", summary.p95_s);
  point.add("mean_s", summary.mean_s).add("samples", summary.samples);
  point.add("rate", static_cast<double>(bytes_per_rank) / summary.median_s / 1e9).add("unit", "GB/s per rank");
}

}  // namespace headway::benchmarks
