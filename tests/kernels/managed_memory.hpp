// SPDX-License-Identifier: Apache-2.0

// Memory that host and device share (cudaMallocManaged), so that a test can fill arguments and compare results with
// plain pointers.

#pragma once

#include "headway/base/cuda_check.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

namespace headway::kernels {

inline bool has_device() {
  int num_devices = 0;
  return cudaGetDeviceCount(&num_devices) == cudaSuccess && num_devices > 0;
}

/// Waits for all enqueued work.
inline void finish() { base::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }

/// Memory that device and host share.
class ManagedMemory {
 public:
  explicit ManagedMemory(std::size_t num_bytes) {
    base::check_cuda(cudaMallocManaged(&data_, std::max<std::size_t>(num_bytes, 1)), "cudaMallocManaged");
  }
  ManagedMemory(ManagedMemory const&) = delete;
  ManagedMemory& operator=(ManagedMemory const&) = delete;
  ~ManagedMemory() { static_cast<void>(cudaFree(data_)); }
  [[nodiscard]] void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

/// Implements the memory of a backend (BackendMemory) by managed memory.
template <class Backend>
class InManagedMemory : public Backend {
  void* allocate(std::size_t num_bytes) override {
    memory_.push_back(std::make_unique<ManagedMemory>(num_bytes));
    return memory_.back()->data();
  }
  std::vector<std::unique_ptr<ManagedMemory>> memory_;
};

}  // namespace headway::kernels
