// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "torch_headers.hpp"

namespace headway::c10d_backend {

/// Returns an uninitialised contiguous CPU tensor in memory of comm::allocate(), which RDMA keeps
/// registered. It is freed with the tensor's storage.
/// Thread-safe; needs no interpreter lock.
/// @throws c10::Error for an invalid shape, as at::empty() does; DistBackendError if there is no memory.
at::Tensor empty(at::IntArrayRef size, at::ScalarType dtype);

}  // namespace headway::c10d_backend
