// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/cuda_check.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace headway::embedding {

/// Array in device memory. Copies to and from it wait for all enqueued work.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::vector<T> const& values) : size_(values.size()) {
    base::check_cuda(cudaMalloc(&data_, std::max<std::size_t>(size_, 1) * sizeof(T)), "cudaMalloc");
    if (size_ > 0)
      base::check_cuda(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
    base::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  DeviceArray(std::size_t size, T value) : DeviceArray(std::vector<T>(size, value)) {}
  DeviceArray(DeviceArray const&) = delete;
  DeviceArray& operator=(DeviceArray const&) = delete;
  ~DeviceArray() { static_cast<void>(cudaFree(data_)); }

  [[nodiscard]] std::span<T> span() const { return {static_cast<T*>(data_), size_}; }
  [[nodiscard]] T* data() const { return static_cast<T*>(data_); }
  [[nodiscard]] std::vector<T> first(std::size_t size) const {
    std::vector<T> values(size);
    base::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    if (size > 0)
      base::check_cuda(cudaMemcpy(values.data(), data_, size * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return values;
  }
  [[nodiscard]] std::vector<T> all() const { return first(size_); }

 private:
  void* data_ = nullptr;
  std::size_t size_;
};

}  // namespace headway::embedding
