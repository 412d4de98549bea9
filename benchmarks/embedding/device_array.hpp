#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>

namespace headway::benchmarks {

/// Checks the result of a CUDA call. @throws std::runtime_error with the name of the call
inline void check_cuda(cudaError_t error, char const* call) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(call) + ": " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error));
}

/// Array of fixed size in the memory of the current device. Its contents are undefined at first.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t size) : size_(size) {
    void* data = nullptr;
    check_cuda(cudaMalloc(&data, size * sizeof(T)), "cudaMalloc");
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
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    check_cuda(cudaMemcpy(data_, source.data(), source.size_bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
    return first(source.size());
  }

 private:
  T* data_ = nullptr;
  std::size_t size_;
};

}  // namespace headway::benchmarks
