// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/embedding/batch_device.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace headway::embedding {

/// Copies from a device to pinned host memory that do not delay the caller's stream, nor does its later work delay
/// them. host_copies.cu explains it. Thread-safe; copies may outlive this object.
class HostCopies {
 public:
  explicit HostCopies(int device) : slots_(std::make_shared<Slots>(device)) {}

  /// Starts a copy of `source`, behind the work that was enqueued on `stream` so far.
  /// @param wait if set, lets the copy's stream wait for other work too
  [[nodiscard]] std::unique_ptr<HostCopy> start(Block<std::int64_t> source, cudaStream_t stream,
                                                std::function<void(CudaStream)> const& wait);

 private:
  class Slot;
  class Slots;
  class Copy;

  std::shared_ptr<Slots> slots_;
};

/// Pinned memory, a stream and an event for one copy at a time.
class HostCopies::Slot {
 public:
  /// @throws base::SystemError
  explicit Slot(std::size_t capacity);
  Slot(Slot const&) = delete;
  Slot& operator=(Slot const&) = delete;
  ~Slot();

  [[nodiscard]] std::size_t capacity() const { return capacity_; }
  [[nodiscard]] std::int64_t const* numbers() const { return static_cast<std::int64_t const*>(memory_); }
  /// Lets this slot's stream, which it returns, wait for the work of `stream` so far.
  cudaStream_t wait_for(cudaStream_t stream);
  /// Starts to copy `source`, not larger than the capacity, on this slot's stream.
  void copy_async(std::span<std::int64_t const> source);
  /// Waits for all copies to this slot. @returns the error of CUDA, if any
  [[nodiscard]] cudaError_t wait() const noexcept { return cudaStreamSynchronize(stream_); }

 private:
  Slot() = default;

  std::size_t capacity_ = 0;  ///< Numbers.
  void* memory_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t is_written_ = nullptr;  ///< Recorded on the caller's stream, behind the work that writes the source.
};

/// The free slots of a device.
class HostCopies::Slots {
 public:
  explicit Slots(int device) : device_(device) {}

  /// A free slot for at least `size` numbers, or a new one.
  [[nodiscard]] std::unique_ptr<Slot> take(std::size_t size);
  void give_back(std::unique_ptr<Slot> slot) noexcept;
  [[nodiscard]] int device() const { return device_; }

 private:
  int device_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Slot>> free_;
  std::size_t num_slots_ = 0;  ///< Free or in use.
};

}  // namespace headway::embedding
