// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "options.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace headway::benchmarks {

/// Settings of bench_embedding_cuda_table.
struct CudaTableSettings {
  std::size_t capacity = std::size_t{64} << 20;  ///< Slots of HierarchicalKV.
  std::vector<double> loads{0.5, 0.75, 0.95};    ///< Ids in each table over `capacity`.
  std::vector<double> hit_rates{1.0, 0.6, 0.0};  ///< Share of the ids of a batch that are in the table.
  std::size_t batch = std::size_t{1} << 20;      ///< Ids per operation.
  std::size_t dim = 64;
  int warmups = 3;
  int rounds = 15;
  std::uint64_t seed = 1;
  int device = 0;

  bool growth = false;  ///< Measure training steps of a growing table instead of operations.
  /// Rows of the growing table before the steps, and after them.
  std::size_t first_rows = std::size_t{1} << 20, last_rows = std::size_t{8} << 20;
  std::size_t step = std::size_t{1} << 17;  ///< New ids per step; as many old ids come with them.

  std::string json;    ///< Output file of the points; empty: none.
  std::string commit;  ///< Commit to record in the points.
};

/// Parses the command line. @throws SettingsError if an option is unknown or out of range
CudaTableSettings parse_cuda_table_settings(Arguments arguments);
std::string cuda_table_usage(std::string const& program);

}  // namespace headway::benchmarks
