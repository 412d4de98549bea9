#pragma once

#include "cuda/device.cuh"
#include "headway/kernels/host_device.hpp"

#include <cstdio>
#if defined(HEADWAY_DEVICE_EMULATOR)
#include <array>
#else
// __assert_fail is only declared where assertions are on; those of other headers stay as they are.
#pragma push_macro("NDEBUG")
#undef NDEBUG
#include <assert.h>
#pragma pop_macro("NDEBUG")
#endif

namespace headway::kernels {

/// Stops the device's context, for what a caller got wrong and only the device can see. The values are printed before,
/// as an assertion has a fixed text. Not for kernels with products of warpgroups: these wait where there are calls.
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
