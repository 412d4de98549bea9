#pragma once

#include "table_settings.hpp"

namespace headway::benchmarks {

/// Prints three JSON points per system: insert, find_rows and find_vectors. @returns the exit status
int measure_table(TableSettings const& settings);

}  // namespace headway::benchmarks
