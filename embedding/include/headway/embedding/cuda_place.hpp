// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

struct CUstream_st;

namespace headway::embedding {

/// CUDA stream (runtime or driver handle); nullptr is the default stream.
using CudaStream = CUstream_st*;

/// Device and stream of the caller. Calls enqueue their work on this stream and do not wait for it, unless their
/// comment says so.
struct CudaPlace {
  int device = 0;
  std::function<CudaStream()> current_stream{};  ///< Returns the caller's stream; empty: the default stream.

  [[nodiscard]] CudaStream stream() const { return current_stream ? current_stream() : nullptr; }
};

}  // namespace headway::embedding
