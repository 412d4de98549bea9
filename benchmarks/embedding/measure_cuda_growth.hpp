#pragma once

#include "cuda_table_settings.hpp"

namespace headway::benchmarks {

/// Times training steps of a table on a device that bring new ids each. @returns the exit status
int measure_cuda_growth(CudaTableSettings const& settings);

}  // namespace headway::benchmarks
