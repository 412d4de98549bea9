// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/cuda_check.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

namespace headway::embedding {

/// Stream-ordered device memory from the default pool of the CUDA runtime. Its contents are undefined at first.
/// Constructor and destructor only enqueue on the stream, so a buffer may go out of scope while kernels that were
/// enqueued before still use it. Work on other streams must be ordered by the caller.
template <class T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(std::size_t size, cudaStream_t stream) : size_(size), stream_(stream) {
    if (size > 0) base::check_cuda(cudaMallocAsync(&data_, size * sizeof(T), stream), "cudaMallocAsync");
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
  base::check_cuda(cudaMemcpyAsync(buffer.data(), values.data(), values.size_bytes(), cudaMemcpyHostToDevice, stream),
                   "cudaMemcpyAsync");
  base::check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  return buffer;
}

/// Copies a buffer to host memory, and waits for the stream. `values` may be shorter than the buffer.
template <class T>
void copy_to_host(DeviceBuffer<T> const& buffer, std::span<T> values, cudaStream_t stream) {
  if (!values.empty()) {
    base::check_cuda(cudaMemcpyAsync(values.data(), buffer.data(), values.size_bytes(), cudaMemcpyDeviceToHost, stream),
                     "cudaMemcpyAsync");
  }
  base::check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

/// Calls a CUB algorithm twice: once to query the size of its scratch memory, once to run it.
/// @param algorithm (scratch, bytes) -> cudaError_t
template <class Algorithm>
void run_with_scratch(char const* name, cudaStream_t stream, Algorithm const& algorithm) {
  std::size_t num_bytes = 0;
  base::check_cuda(algorithm(nullptr, num_bytes), name);
  num_bytes = std::max<std::size_t>(num_bytes, 1);  // With nullptr, CUB would only report the size again.
  DeviceBuffer<std::byte> const scratch(num_bytes, stream);
  base::check_cuda(algorithm(scratch.data(), num_bytes), name);
}

}  // namespace headway::embedding
