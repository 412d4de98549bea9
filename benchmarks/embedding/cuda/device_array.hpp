// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/cuda_check.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>

namespace headway::benchmarks {

/// Array of fixed size in the memory of the current device. Its contents are undefined at first.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t size) : size_(size) {
    void* data = nullptr;
    base::check_cuda(cudaMalloc(&data, size * sizeof(T)), "cudaMalloc");
    data_ = static_cast<T*>(data);
  }
  ~DeviceArray() { static_cast<void>(cudaFree(data_)); }
  DeviceArray(DeviceArray const&) = delete;
  DeviceArray& operator=(DeviceArray const&) = delete;

  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] std::span<T> first(std::size_t count) const { return std::span<T>(data_, size_).first(count); }

  /// Copies host memory to the begin of the array. Waits for the device before and for the copy.
  /// @returns the elements that were copied, in device memory
  std::span<T> set(std::span<T const> source) const {
    base::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    base::check_cuda(cudaMemcpy(data_, source.data(), source.size_bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
    return first(source.size());
  }

 private:
  T* data_ = nullptr;
  std::size_t size_;
};

}  // namespace headway::benchmarks
