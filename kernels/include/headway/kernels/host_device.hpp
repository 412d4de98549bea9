#pragma once

/// Before a function that kernels call too.
#if defined(__CUDACC__)
#define HEADWAY_HOST_DEVICE __host__ __device__
#else
#define HEADWAY_HOST_DEVICE
#endif

/// Before a small function that kernels and files for newer processors call: it is never compiled apart, in a form that
/// not all processors run.
#define HEADWAY_ALWAYS_INLINE HEADWAY_HOST_DEVICE __attribute__((always_inline)) inline
