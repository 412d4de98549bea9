#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace headway::kernels {

/// Memory of a place where kernels compute, that the test can read and write as well. It lives as long as this.
class PlaceMemory {
 public:
  virtual ~PlaceMemory() = default;

  template <class T>
  std::span<T> array(std::vector<T> const& values) {
    auto* const memory = static_cast<T*>(allocate(std::max<std::size_t>(values.size(), 1) * sizeof(T)));
    std::copy(values.begin(), values.end(), memory);
    return {memory, values.size()};
  }
  /// Memory that holds no value that is expected.
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

/// An interface of a place, with exactly as much memory as was asked for, so that a sanitizer sees what goes beyond.
template <class Place>
class InHostMemory : public Place {
  void* allocate(std::size_t num_bytes) override {
    memory_.push_back(std::make_unique<std::byte[]>(num_bytes));
    return memory_.back().get();
  }
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

/// With memory that is aligned as a device's widest vectors are.
template <class Place>
class InAlignedMemory : public Place {
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
