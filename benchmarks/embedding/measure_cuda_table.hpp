#pragma once

#include "cuda_table_settings.hpp"

namespace headway::benchmarks {

/// Measures every operation at every load and hit rate. @returns the exit status
int measure_cuda_table(CudaTableSettings const& settings);

}  // namespace headway::benchmarks
