// SPDX-License-Identifier: Apache-2.0
#pragma once

struct CUstream_st;

namespace headway::kernels {

/// A stream of the CUDA runtime or driver; nullptr is the default one.
using CudaStream = CUstream_st*;

}  // namespace headway::kernels
