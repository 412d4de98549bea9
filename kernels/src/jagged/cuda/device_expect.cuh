#pragma once

// __assert_fail is only declared where assertions are on; those of other headers stay as they are.
#pragma push_macro("NDEBUG")
#undef NDEBUG
#include <assert.h>
#pragma pop_macro("NDEBUG")

namespace headway::kernels {

/// For what a caller got wrong and only the device can see.
__device__ inline void expect_on_device(bool is_good, char const* what) {
  if (!is_good) __assert_fail(what, __FILE__, __LINE__, "headway");
}

}  // namespace headway::kernels
