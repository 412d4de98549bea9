#pragma once

#include "options.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

namespace headway::benchmarks {

/// What bench_embedding_table measures.
struct TableSettings {
  std::size_t rows = 4'000'000;
  std::size_t batch = 1'000'000;
  std::size_t step = 100'000;  ///< New ids of one insertion.
  std::size_t dim = 64;
  int threads = 1;
  int rounds = 7;
  std::uint64_t seed = 1;
};

/// @throws SettingsError
TableSettings parse_table_settings(Arguments arguments);
std::string table_usage(std::string const& program);

}  // namespace headway::benchmarks
