// SPDX-License-Identifier: Apache-2.0

// Measures operations of CUDA tables at several loads and hit rates, beside HierarchicalKV if the build has it.
//
// Systems take turns within a round, and the order alternates between rounds, so that a slow drift of the device's
// clock hits all alike. Each system runs untimed first: HierarchicalKV chooses its kernels during the first calls.

#include "cuda_operation.hpp"
#include "cuda_point_report.hpp"
#include "cuda_points.hpp"
#include "cuda_stopwatch.hpp"
#include "cuda_table_settings.hpp"
#include "filled_tables.hpp"
#include "measure_cuda_growth.hpp"
#include "rank_program.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace headway::benchmarks {

namespace {

constexpr std::size_t kCopyBytes = std::size_t{2} << 30;
/// Untimed calls with one id. HierarchicalKV chooses its kernels anew with every seventh call.
constexpr int kFirstCalls = 9;

/// Indices of the systems, in an order that alternates between rounds.
std::vector<std::size_t> turns(std::size_t count, int round) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (round % 2 != 0) std::ranges::reverse(order);
  return order;
}

/// Lets each system choose its kernels, before anything is timed.
void call_with_one_id(FilledTables& tables, CudaOperationRunner const& runner) {
  auto const one = tables.next_batch(1).device_ids.first(1);
  for (auto& each : tables.systems()) {
    for (int i = 0; i < kFirstCalls; ++i) runner.run(*each.system, one, tables.embeddings_of(one));
  }
}

/// Measures one operation at one hit rate. @returns (systems, rounds)
std::vector<std::vector<CallDuration>> measure_point(CudaTableSettings const& settings, CudaStopwatch const& stopwatch,
                                                     FilledTables& tables, CudaOperation operation, double hit_rate) {
  CudaOperationRunner const runner(operation, settings.batch, settings.dim, settings.seed);
  call_with_one_id(tables, runner);
  auto const systems = tables.systems();
  std::vector<std::vector<CallDuration>> durations(systems.size());
  for (int round = -settings.warmups; round < settings.rounds; ++round) {
    auto const& batch = tables.next_batch(hit_rate);
    for (std::size_t const at : turns(systems.size(), round)) {
      auto const embeddings = tables.embeddings_of(batch.device_ids);
      runner.prepare();
      auto const duration = stopwatch.time([&] { runner.run(*systems[at].system, batch.device_ids, embeddings); });
      runner.check(systems[at], batch);
      if (inserts(operation)) tables.restore(systems[at], batch);
      if (round >= 0) durations[at].push_back(duration);
    }
  }
  return durations;
}

/// Measures all operations at all hit rates. Refills the tables after points that erased ids.
void measure_load(CudaTableSettings const& settings, CudaStopwatch const& stopwatch, FilledTables& tables, double load,
                  CudaPointReport const& report) {
  tables.fill(load);
  report.print_memory(load, tables.systems(), tables.num_rows());
  bool is_fresh = true;
  for (CudaOperation const operation : kCudaOperations) {
    for (double const hit_rate : settings.hit_rates) {
      if (!is_fresh) tables.fill(load);
      auto const durations = measure_point(settings, stopwatch, tables, operation, hit_rate);
      report.print({.operation = operation, .load = load, .hit_rate = hit_rate, .num_rows = tables.num_rows()},
                   tables.systems(), durations);
      is_fresh = !inserts(operation) || hit_rate == 1;
    }
  }
}

/// Measures all operations at all loads and hit rates. @returns the exit status
int measure_cuda_table(CudaTableSettings const& settings) {
  base::check_cuda(cudaSetDevice(settings.device), "cudaSetDevice");
  CudaPoints const points(settings.json, settings.commit, settings.device);
  CudaStopwatch const stopwatch;
  CudaPointReport const report(settings, points, measure_copy_bytes_per_s(stopwatch, kCopyBytes));
  FilledTables tables(settings, stopwatch.stream());
  for (double const load : settings.loads) measure_load(settings, stopwatch, tables, load, report);
  return 0;
}

}  // namespace

}  // namespace headway::benchmarks

int main(int argc, char** argv) {
  using namespace headway::benchmarks;
  return run_main(argc, argv, cuda_table_usage, [](Arguments arguments) {
    auto const settings = parse_cuda_table_settings(arguments);
    return settings.growth ? measure_cuda_growth(settings) : measure_cuda_table(settings);
  });
}
