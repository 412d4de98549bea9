#pragma once

#include "cuda_operation.hpp"
#include "cuda_points.hpp"
#include "cuda_stopwatch.hpp"
#include "cuda_systems.hpp"
#include "cuda_table_settings.hpp"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace headway::benchmarks {

/// Under what an operation was measured.
struct CudaCase {
  CudaOperation operation;
  double load;
  double hit_rate;
  std::size_t num_rows;
};

/// Prints a table, and writes the same as points.
class CudaPointReport {
 public:
  /// Prints what all cases have in common. All arguments outlive it.
  CudaPointReport(CudaTableSettings const& settings, CudaPoints const& points, double copy_bytes_per_s);

  /// @param durations of each system, in the order of rounds
  void print(CudaCase const& measured, std::span<NamedCudaSystem const> systems,
             std::span<std::vector<CallDuration> const> durations) const;
  void print_memory(double load, std::span<NamedCudaSystem const> systems, std::size_t num_rows) const;

 private:
  [[nodiscard]] JsonObject params(double load, std::size_t num_rows) const;

  CudaTableSettings const& settings_;
  CudaPoints const& points_;
  double copy_bytes_per_s_;
};

}  // namespace headway::benchmarks
