// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda_table_settings.hpp"

namespace headway::benchmarks {

/// Times training steps of a CUDA table, each of which brings new ids. The longest step over the median shows whether
/// growth makes single steps slow. @returns the exit status
int measure_cuda_growth(CudaTableSettings const& settings);

}  // namespace headway::benchmarks
