#pragma once

#include "cuda/cuda_check.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>
#include <utility>

namespace headway::embedding {

/// Stream-ordered device memory from the default pool of the CUDA runtime. Its contents are undefined at first.
template <class T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(std::size_t size, cudaStream_t stream) : size_(size), stream_(stream) {
    if (size > 0) check(cudaMallocAsync(&data_, size * sizeof(T), stream), "cudaMallocAsync");
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), stream_(other.stream_) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~DeviceBuffer() {
    if (data_ != nullptr) static_cast<void>(cudaFreeAsync(data_, stream_));
  }

  [[nodiscard]] T* data() const { return static_cast<T*>(data_); }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::span<T> span() const { return {data(), size_}; }
  /// The destructor will free the memory in the order of this stream.
  void use_on(cudaStream_t stream) { stream_ = stream; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
  cudaStream_t stream_ = nullptr;
};

/// Copies host memory to a new buffer. Waits for the copy, so `values` may go afterwards.
template <class T>
DeviceBuffer<T> copy_to_device(std::span<T const> values, cudaStream_t stream) {
  DeviceBuffer<T> buffer(values.size(), stream);
  if (values.empty()) return buffer;
  check(cudaMemcpyAsync(buffer.data(), values.data(), values.size_bytes(), cudaMemcpyHostToDevice, stream),
        "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  return buffer;
}

/// Copies a buffer to host memory, and waits for the stream. `values` may be shorter than the buffer.
template <class T>
void copy_to_host(DeviceBuffer<T> const& buffer, std::span<T> values, cudaStream_t stream) {
  if (!values.empty()) {
    check(cudaMemcpyAsync(values.data(), buffer.data(), values.size_bytes(), cudaMemcpyDeviceToHost, stream),
          "cudaMemcpyAsync");
  }
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

}  // namespace headway::embedding
