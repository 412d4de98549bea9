#pragma once

#include "cuda_systems.hpp"

#include <memory>

namespace headway::benchmarks {

/// NVIDIA's HierarchicalKV, entirely in device memory, with least-recently-used eviction.
std::unique_ptr<CudaTableSystem> make_hierarchical_kv_system(CudaSystemOptions const& options);

}  // namespace headway::benchmarks
