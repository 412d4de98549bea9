// SPDX-License-Identifier: Apache-2.0

// Rows of a matrix that may be a view of wider rows, as the parts of a split tensor are.

#pragma once

#include <cstdint>

namespace headway::kernels {

/// Rows of contiguous elements, `stride` elements apart.
template <class Pointer>
struct StridedRows {
  Pointer data = nullptr;
  std::int64_t stride = 0;
};

}  // namespace headway::kernels
