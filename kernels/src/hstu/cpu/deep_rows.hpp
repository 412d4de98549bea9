#pragma once

#include "hstu/cpu/aligned_buffer.hpp"
#include "hstu/cpu/block_kernels.hpp"

#include <cstdint>

namespace headway::kernels::hstu {

/// Rows of a head as the second operand of a product that sums over these rows.
template <class Element>
class DeepRows {
 public:
  explicit DeepRows(std::int64_t columns)
      : stride_(padded(columns)), pairs_(kIsSingle<Element> ? 0 : kBlockSize / 2 * stride_) {}

  /// Loads the rows. `loaded` is the result of BlockKernels::load() for the same rows; single numbers are used from
  /// there without a copy.
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
