// SPDX-License-Identifier: Apache-2.0

// Report of one measured point of the CUDA tables: times per call by the device's clock and by the host's, ratios to
// the reference system per round, and bytes per row. A value that a system does not have is NaN, which is null in JSON.

#include "cuda_point_report.hpp"

#include "sample_summary.hpp"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <string_view>

namespace headway::benchmarks {

namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

std::vector<double> seconds(std::span<CallDuration const> durations, double CallDuration::*clock) {
  std::vector<double> seconds;
  for (auto const& each : durations) seconds.push_back(each.*clock);
  return seconds;
}

/// Speed-up of a system over the reference, per round.
std::vector<double> ratios(std::span<double const> reference_s, std::span<double const> system_s) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < system_s.size(); ++i) ratios.push_back(reference_s[i] / system_s[i]);
  return ratios;
}

std::string_view notes_on(CudaCase const& measured) {
  if (!inserts(measured.operation) || measured.hit_rate == 1) return "";
  if (measured.load < 1)
    return "new ids are erased between rounds; HierarchicalKV keeps marks of slots that were erased";
  return "HierarchicalKV evicts an id for each new one; Headway grows; both are restored between rounds";
}

/// Bytes per row beside the id and the embedding.
double overhead_per_row(double num_bytes, std::size_t num_rows, std::size_t dim) {
  return num_bytes / static_cast<double>(num_rows) - static_cast<double>(sizeof(std::uint64_t) + dim * sizeof(float));
}

}  // namespace

CudaPointReport::CudaPointReport(CudaTableSettings const& settings, CudaPoints const& points, double copy_bytes_per_s)
    : settings_(settings), points_(points), copy_bytes_per_s_(copy_bytes_per_s) {
  std::printf("%s, %zu ids an operation, dim %zu, %d rounds; copies read and write %.0f GB/s\n",
              points.machine().c_str(), settings.batch, settings.dim, settings.rounds, copy_bytes_per_s / 1e9);
  std::printf("%-17s %5s %5s %-16s %10s %10s %9s %8s %8s\n", "operation", "load", "hits", "system", "median ms",
              "wall ms", "Gkeys/s", "of copy", "ratio");
}

void CudaPointReport::print(CudaCase const& measured, std::span<NamedCudaSystem const> systems,
                            std::span<std::vector<CallDuration> const> durations) const {
  std::string const operation(name_of(measured.operation));
  auto const reference_s = seconds(durations.back(), &CallDuration::device_s);
  for (std::size_t i = 0; i < systems.size(); ++i) {
    auto const device_s = seconds(durations[i], &CallDuration::device_s);
    auto const summary = summarize(device_s);
    double const wall_median_s = summarize(seconds(durations[i], &CallDuration::wall_s)).median_s;
    auto const of_rounds = ratios(reference_s, device_s);
    bool const is_reference = i + 1 == systems.size();
    double const ratio = is_reference ? kNone : summarize(of_rounds).median_s;
    double const keys_per_s = static_cast<double>(settings_.batch) / summary.median_s;
    double const bytes_per_key = 2 * static_cast<double>(settings_.dim * sizeof(float));
    double const of_copy =
        moves_embeddings(measured.operation) ? keys_per_s * bytes_per_key / copy_bytes_per_s_ : kNone;
    std::printf("%-17s %5.2f %5.2f %-16s %10.3f %10.3f %9.3f %8.3f %8.2f\n", operation.c_str(), measured.load,
                measured.hit_rate, systems[i].name.c_str(), summary.median_s * 1e3, wall_median_s * 1e3,
                keys_per_s / 1e9, of_copy, ratio);
    points_.write(
        JsonObject()
            .add("name", "embedding_cuda_table")
            .add(
                "params",
                params(measured.load, measured.num_rows).add("operation", operation).add("hit_rate", measured.hit_rate))
            .add("system", systems[i].name)
            .add("median_s", summary.median_s)
            .add("p5_s", summary.p5_s)
            .add("p95_s", summary.p95_s)
            .add("longest_s", *std::ranges::max_element(device_s))
            .add("samples", summary.samples)
            .add("rate", keys_per_s / 1e9)
            .add("unit", "billion keys/s")
            .add("ratio", ratio)
            .add("ratio_low", is_reference ? kNone : *std::ranges::min_element(of_rounds))
            .add("ratio_high", is_reference ? kNone : *std::ranges::max_element(of_rounds))
            .add("wall_median_s", wall_median_s)
            .add("fraction_of_copy", of_copy)
            .add("copy_bytes_per_s", copy_bytes_per_s_)
            .add("notes", notes_on(measured)));
  }
  std::fflush(stdout);
}

void CudaPointReport::print_memory(double load, std::span<NamedCudaSystem const> systems, std::size_t num_rows) const {
  for (auto const& each : systems) {
    auto const own = each.system->bytes();
    // If a system does not report its memory: what it has taken from the device since it was made, fills included.
    double const num_bytes =
        own ? static_cast<double>(own->key_bytes + own->row_bytes) : static_cast<double>(each.device_bytes);
    double const overhead = overhead_per_row(num_bytes, num_rows, settings_.dim);
    std::printf("memory            %5.2f       %-16s %.3f GB for %zu rows; beside ids and vectors %.1f B a row\n", load,
                each.name.c_str(), num_bytes / 1e9, num_rows, overhead);
    points_.write(JsonObject()
                      .add("name", "embedding_cuda_table_memory")
                      .add("params", params(load, num_rows))
                      .add("system", each.name)
                      .add("rate", overhead)
                      .add("unit", "bytes a row beside id and vector")
                      .add("num_bytes", num_bytes));
  }
}

JsonObject CudaPointReport::params(double load, std::size_t num_rows) const {
  return JsonObject()
      .add("load", load)
      .add("capacity", settings_.capacity)
      .add("rows", num_rows)
      .add("keys", settings_.batch)
      .add("dim", settings_.dim);
}

}  // namespace headway::benchmarks
