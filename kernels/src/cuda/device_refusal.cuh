// SPDX-License-Identifier: Apache-2.0

// Refusal of bad arguments that only the device can see, such as offsets. The host enqueued the kernel long ago, so
// no exception can reach the caller: the kernel stops the context before it follows a bad offset.

#pragma once

#include "cuda/device.cuh"
#include "headway/kernels/host_device.hpp"

#include <cstdio>
// Tests compile kernels for an emulator on the CPU: see device.cuh.
#if defined(HEADWAY_DEVICE_EMULATOR)
#include <array>
#else
// <cassert> declares __assert_fail only if assertions are on. The macro is restored, so other headers keep their
// setting.
#pragma push_macro("NDEBUG")
#undef NDEBUG
#include <assert.h>
#pragma pop_macro("NDEBUG")
#endif

namespace headway::kernels {

/// Stops the device's context for an error of the caller that only the device can see. It prints the values first,
/// since an assertion has a fixed text. Do not use it in kernels with wgmma: a function call makes ptxas serialise
/// wgmma.
struct RefuseOnDevice {
  template <class... Values>
  HEADWAY_HOST_DEVICE void operator()(char const* format, Values... values) const {
#if defined(HEADWAY_DEVICE_EMULATOR)
    std::array<char, 256> text{};
    std::snprintf(text.data(), text.size(), format, values...);
    throw device_emulator::KernelError(text.data());
#else
    printf(format, values...);
    printf("\n");
    __assert_fail("offsets and counts are right (a line on stdout names those that are not)", __FILE__, __LINE__,
                  "headway");
#endif
  }
};

}  // namespace headway::kernels
