// SPDX-License-Identifier: Apache-2.0
#pragma once

// <cassert> declares __assert_fail only if assertions are on. The macro is restored, so other headers keep their
// setting.
#pragma push_macro("NDEBUG")
#undef NDEBUG
#include <assert.h>
#pragma pop_macro("NDEBUG")

namespace headway::kernels {

/// Stops the device's context for an error of the caller that only the device can see.
__device__ inline void expect_on_device(bool is_good, char const* what) {
  if (!is_good) __assert_fail(what, __FILE__, __LINE__, "headway");
}

}  // namespace headway::kernels
