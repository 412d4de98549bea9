// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace headway::embedding {

/// Zero-filled memory, aligned to huge pages. The operating system provides its pages at their first touch.
class HugeMemory {
 public:
  static constexpr std::size_t kPageBytes = std::size_t{2} << 20, kSmallPageBytes = std::size_t{4} << 10;
  enum class Pages { kHuge, kSmall };

  HugeMemory() = default;
  /// Maps `num_bytes`, rounded up to huge pages. @throws std::bad_alloc
  explicit HugeMemory(std::size_t num_bytes, Pages pages = Pages::kHuge);
  HugeMemory(HugeMemory&& other) noexcept { swap(other); }
  HugeMemory& operator=(HugeMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~HugeMemory();

  /// From now on a huge page is used at a first touch, unless a part of it was touched before. Keeps the contents.
  void use_huge_pages();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return num_bytes_; }
  [[nodiscard]] Pages pages() const { return pages_; }

 private:
  void swap(HugeMemory& other) noexcept;

  std::byte* data_ = nullptr;
  std::size_t num_bytes_ = 0;
  Pages pages_ = Pages::kHuge;
};

}  // namespace headway::embedding
