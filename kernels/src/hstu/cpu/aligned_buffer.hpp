// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace headway::kernels::hstu {

/// Array of elements on the heap that begins at a cache line and is zero at first.
template <class T>
class AlignedBuffer {
 public:
  explicit AlignedBuffer(std::int64_t size)
      : elements_(new (std::align_val_t{kAlignment}) T[static_cast<std::size_t>(size)]()) {}

  [[nodiscard]] T* data() const { return elements_.get(); }

 private:
  static constexpr std::size_t kAlignment = 64;
  struct Free {
    void operator()(T* elements) const { ::operator delete[](elements, std::align_val_t{kAlignment}); }
  };
  std::unique_ptr<T[], Free> elements_;
};

}  // namespace headway::kernels::hstu
