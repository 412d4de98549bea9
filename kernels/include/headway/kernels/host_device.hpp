// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Marks a function that kernels call as well.
#if defined(__CUDACC__)
#define HEADWAY_HOST_DEVICE __host__ __device__
#else
#define HEADWAY_HOST_DEVICE
#endif

/// Marks a small function that kernels and files for newer processors call. It is always inlined: a separate copy could
/// be compiled for instructions that not all processors have.
#define HEADWAY_ALWAYS_INLINE HEADWAY_HOST_DEVICE __attribute__((always_inline)) inline
