#pragma once

#include "hstu/cpu/aligned_buffer.hpp"
#include "hstu/cpu/block_kernels.hpp"

#include <cstdint>

namespace headway::kernels::hstu {

/// Some rows of a head as the second factor of a product whose depth they are.
template <class Element>
class DeepRows {
 public:
  explicit DeepRows(std::int64_t columns)
      : stride_(padded(columns)), pairs_(kIsSingle<Element> ? 0 : kBlockSize / 2 * stride_) {}

  /// `loaded` is what BlockKernels::load made of the same rows: single elements are taken from there.
  void load(BlockKernels<Element> const& kernels, ElementRows<void const*> const& source, Element const* loaded) {
    if constexpr (kIsSingle<Element>)
      data_ = loaded;
    else
      kernels.load_deep(source, pairs_.data(), stride_);
  }

  [[nodiscard]] Rows<Element const> rows() const { return {kIsSingle<Element> ? data_ : pairs_.data(), stride_}; }

 private:
  std::int64_t stride_;
  AlignedBuffer<Element> pairs_;
  Element const* data_ = nullptr;
};

}  // namespace headway::kernels::hstu
