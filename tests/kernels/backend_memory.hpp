// SPDX-License-Identifier: Apache-2.0

// Memory for tests that run once on each backend: the CPU, an emulated device, a CUDA device.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace headway::kernels {

/// Memory of a backend that runs kernels. Tests can read and write it too. It lives as long as this object.
class BackendMemory {
 public:
  virtual ~BackendMemory() = default;

  /// Copies values into new memory.
  template <class T>
  std::span<T> array(std::vector<T> const& values) {
    auto* const memory = static_cast<T*>(allocate(std::max<std::size_t>(values.size(), 1) * sizeof(T)));
    std::copy(values.begin(), values.end(), memory);
    return {memory, values.size()};
  }
  /// Allocates memory filled with 0xa5, which no test expects.
  template <class T>
  std::span<T> room(std::int64_t size) {
    auto* const memory =
        static_cast<T*>(allocate(static_cast<std::size_t>(std::max<std::int64_t>(size, 1)) * sizeof(T)));
    std::fill_n(reinterpret_cast<std::byte*>(memory), static_cast<std::size_t>(size) * sizeof(T), std::byte{0xa5});
    return {memory, static_cast<std::size_t>(size)};
  }

 protected:
  virtual void* allocate(std::size_t num_bytes) = 0;
};

/// Implements the memory of a backend by exact allocations on the host, so that a sanitizer finds accesses beyond them.
template <class Backend>
class InHostMemory : public Backend {
  void* allocate(std::size_t num_bytes) override {
    memory_.push_back(std::make_unique<std::byte[]>(num_bytes));
    return memory_.back().get();
  }
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

/// Implements the memory of a backend by host memory that is aligned for 16-byte vectors.
template <class Backend>
class InAlignedMemory : public Backend {
  struct alignas(16) Block {
    std::byte bytes[16];
  };
  void* allocate(std::size_t num_bytes) override {
    memory_.push_back(std::make_unique<Block[]>((num_bytes + sizeof(Block) - 1) / sizeof(Block)));
    return memory_.back().get();
  }
  std::vector<std::unique_ptr<Block[]>> memory_;
};

}  // namespace headway::kernels
