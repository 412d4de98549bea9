#pragma once

#include "cuda_systems.hpp"

#include <memory>

namespace headway::benchmarks {

/// NVIDIA's HierarchicalKV, all in memory of the device, evicting the least recently used.
std::unique_ptr<CudaTableSystem> make_hierarchical_kv_system(CudaSystemOptions const& options);

}  // namespace headway::benchmarks
