#pragma once

#include "options.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace headway::benchmarks {

/// What bench_embedding_cuda_table measures.
struct CudaTableSettings {
  std::size_t capacity = std::size_t{64} << 20;  ///< Slots of HierarchicalKV.
  std::vector<double> loads{0.5, 0.75, 0.95};
  std::vector<double> hit_rates{1.0, 0.6, 0.0};
  std::size_t batch = std::size_t{1} << 20;  ///< Ids of one operation.
  std::size_t dim = 64;
  int warmups = 3;
  int rounds = 15;
  std::uint64_t seed = 1;
  int device = 0;

  bool growth = false;  ///< Measures steps of a table that grows instead.
  std::size_t first_rows = std::size_t{1} << 20, last_rows = std::size_t{8} << 20;
  std::size_t step = std::size_t{1} << 17;  ///< New ids of one step, and old ones.

  std::string json;    ///< File of the points; none if empty.
  std::string commit;  ///< For the points.
};

/// @throws SettingsError
CudaTableSettings parse_cuda_table_settings(Arguments arguments);
std::string cuda_table_usage(std::string const& program);

}  // namespace headway::benchmarks
