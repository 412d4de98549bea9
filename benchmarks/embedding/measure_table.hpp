#pragma once

#include "table_settings.hpp"

namespace headway::benchmarks {

/// Prints two points a system: of insertions, and of finds. @returns the exit status
int measure_table(TableSettings const& settings);

}  // namespace headway::benchmarks
