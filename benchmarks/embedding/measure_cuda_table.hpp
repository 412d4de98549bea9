#pragma once

#include "cuda_table_settings.hpp"

namespace headway::benchmarks {

/// Measures all operations at all loads and hit rates. @returns the exit status
int measure_cuda_table(CudaTableSettings const& settings);

}  // namespace headway::benchmarks
