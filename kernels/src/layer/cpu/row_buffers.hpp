// SPDX-License-Identifier: Apache-2.0

// Rows in buffers of the arithmetic type, and pieces of rows for deterministic sums, for the layer functions on the
// CPU.

#pragma once

#include "elements.hpp"
#include "headway/kernels/strided_rows.hpp"
#include "hstu/cpu/aligned_buffer.hpp"
#include "hstu/cpu/block_kernels.hpp"
#include "jagged/cpu/row_chunks.hpp"
#include "layer/cpu/row_kernels.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace headway::kernels::layer {

/// Conversion between rows of elements and buffers, with the fastest functions for this processor.
template <class Real>
struct RowAccess {
  hstu::BlockKernels<Real> const& blocks = hstu::usable_block_kernels<Real>().back();
  RowKernels<Real> const& rows = usable_row_kernels<Real>().back();

  /// Loads columns [first, first + size) of a row; the buffer is padded with zeros up to padded(size).
  void load(ElementType type, StridedRows<void const*> const& from, std::int64_t row, std::int64_t first,
            std::int64_t size, Real* buffer) const {
    auto const* const data = static_cast<std::byte const*>(from.data) + (row * from.stride + first) * size_of(type);
    blocks.load({.data = data, .type = type, .stride = from.stride, .rows = 1, .columns = size}, buffer, size);
  }
  /// Rounds `size` numbers and writes them to columns from `first` on.
  void store(ElementType type, Real const* buffer, StridedRows<void*> const& to, std::int64_t row, std::int64_t first,
             std::int64_t size) const {
    auto* const data = static_cast<std::byte*>(to.data) + (row * to.stride + first) * size_of(type);
    blocks.store(buffer, size, {.data = data, .type = type, .stride = to.stride, .rows = 1, .columns = size});
  }
};

/// Cuts rows into pieces of equally many rows, each with sums of its own. Pieces are many enough to share among any
/// number of threads, and few enough that their sums cost little. Their number depends on the rows alone, which keeps
/// results independent of threads.
class RowPieces {
 public:
  RowPieces(std::int64_t num_rows, std::int64_t row_bytes)
      : num_rows_(num_rows), count_(std::min<std::int64_t>(RowChunks(num_rows, row_bytes).count(), kMost)) {}

  [[nodiscard]] std::int64_t count() const { return count_; }
  [[nodiscard]] Range rows(std::int64_t piece) const {
    return {num_rows_ * piece / count_, num_rows_ * (piece + 1) / count_};
  }

 private:
  static constexpr std::int64_t kMost = 128;  ///< Largest number of pieces.
  std::int64_t num_rows_, count_;
};

/// Calls call.template operator()<Real>() with the arithmetic type for an element type.
template <class Call>
void with_real(ElementType type, Call const& call) {
  return type == ElementType::kFloat64 ? call.template operator()<double>() : call.template operator()<float>();
}

}  // namespace headway::kernels::layer
