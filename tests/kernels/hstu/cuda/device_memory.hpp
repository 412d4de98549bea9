// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/cuda_check.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace headway::kernels {

/// Array in device memory. Its copies wait for all enqueued work.
template <class T>
class DeviceMemory {
 public:
  explicit DeviceMemory(std::vector<T> const& values) : size_(values.size()) {
    base::check_cuda(cudaMalloc(&data_, std::max<std::size_t>(size_ * sizeof(T), 16)), "cudaMalloc");
    base::check_cuda(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  DeviceMemory(DeviceMemory const&) = delete;
  DeviceMemory& operator=(DeviceMemory const&) = delete;
  ~DeviceMemory() { static_cast<void>(cudaFree(data_)); }

  [[nodiscard]] T* data() const { return static_cast<T*>(data_); }
  [[nodiscard]] T* data_or_null() const { return size_ == 0 ? nullptr : data(); }
  [[nodiscard]] std::vector<T> values() const {
    std::vector<T> values(size_);
    base::check_cuda(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return values;
  }

 private:
  void* data_ = nullptr;
  std::size_t size_;
};

}  // namespace headway::kernels
