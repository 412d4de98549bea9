#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>

namespace headway::benchmarks {

/// @throws std::runtime_error with the name of the call
inline void check_cuda(cudaError_t error, char const* call) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(call) + ": " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error));
}

/// Memory of the current device, of a fixed size.
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

  /// Copies from memory of the host, after all that the device does, and waits. @returns what was copied
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
