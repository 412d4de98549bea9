#pragma once

#include <functional>

struct CUstream_st;

namespace headway::embedding {

/// A stream of the CUDA runtime or driver; nullptr is the default one.
using CudaStream = CUstream_st*;

/// Where work goes: the device, and what says which stream is the caller's. Calls enqueue there, and do not wait
/// unless they say so.
struct CudaPlace {
  int device = 0;
  std::function<CudaStream()> current_stream{};  ///< None: the default stream.

  [[nodiscard]] CudaStream stream() const { return current_stream ? current_stream() : nullptr; }
};

}  // namespace headway::embedding
