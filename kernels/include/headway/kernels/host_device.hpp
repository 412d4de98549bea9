#pragma once

/// Before a function that kernels call too.
#if defined(__CUDACC__)
#define HEADWAY_HOST_DEVICE __host__ __device__
#else
#define HEADWAY_HOST_DEVICE
#endif
