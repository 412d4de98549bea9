// SPDX-License-Identifier: Apache-2.0
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

/// Conditions of a measurement.
struct CudaCase {
  CudaOperation operation;
  double load;           ///< Ids in the table over the capacity.
  double hit_rate;       ///< Share of the ids of a batch that are in the table.
  std::size_t num_rows;  ///< Ids in each table.
};

/// Prints results as a table, and writes them as JSON points.
class CudaPointReport {
 public:
  /// Prints the settings that all cases share, and the header. Keeps references: all arguments must outlive it.
  /// @param copy_bytes_per_s bytes read plus written per second by a device-to-device copy; the "of copy"
  /// column compares with it the operations that move embeddings
  CudaPointReport(CudaTableSettings const& settings, CudaPoints const& points, double copy_bytes_per_s);

  /// Prints one case. The last system is the reference of ratios.
  /// @param durations (systems, rounds)
  void print(CudaCase const& measured, std::span<NamedCudaSystem const> systems,
             std::span<std::vector<CallDuration> const> durations) const;
  /// Prints the memory of each system.
  void print_memory(double load, std::span<NamedCudaSystem const> systems, std::size_t num_rows) const;

 private:
  [[nodiscard]] JsonObject params(double load, std::size_t num_rows) const;

  CudaTableSettings const& settings_;
  CudaPoints const& points_;
  double copy_bytes_per_s_;
};

}  // namespace headway::benchmarks
