#pragma once

#include <cstddef>

namespace headway::embedding {

/// Zero-filled memory of whole huge pages, which the operating system provides when they are first touched.
class HugeMemory {
 public:
  static constexpr std::size_t kPageBytes = std::size_t{2} << 20;

  HugeMemory() = default;
  /// Rounded up to pages. @throws std::bad_alloc
  explicit HugeMemory(std::size_t num_bytes);
  HugeMemory(HugeMemory&& other) noexcept { swap(other); }
  HugeMemory& operator=(HugeMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~HugeMemory();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return num_bytes_; }

 private:
  void swap(HugeMemory& other) noexcept;

  std::byte* data_ = nullptr;
  std::size_t num_bytes_ = 0;
};

}  // namespace headway::embedding
