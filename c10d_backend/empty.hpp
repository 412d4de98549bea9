#pragma once

#include "torch_headers.hpp"

namespace headway::c10d_backend {

/// A contiguous tensor on the CPU in memory of comm::allocate(), which is freed with its storage. Contents are
/// undefined. Thread-safe; needs no interpreter lock.
/// @throws c10::Error as at::empty() does for such a shape, DistBackendError if there is no memory.
at::Tensor empty(at::IntArrayRef size, at::ScalarType dtype);

}  // namespace headway::c10d_backend
