// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "options.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

namespace headway::benchmarks {

/// Settings of bench_embedding_table.
struct TableSettings {
  std::size_t rows = 4'000'000;   ///< Ids in the table after the insertions.
  std::size_t batch = 1'000'000;  ///< Ids per lookup.
  std::size_t step = 100'000;     ///< New ids per insertion.
  std::size_t dim = 64;
  int threads = 1;  ///< Per system, if it can use several.
  int rounds = 7;   ///< Lookups per system and operation.
  std::uint64_t seed = 1;
};

/// Parses the command line. @throws SettingsError if an option is unknown or out of range
TableSettings parse_table_settings(Arguments arguments);
std::string table_usage(std::string const& program);

}  // namespace headway::benchmarks
