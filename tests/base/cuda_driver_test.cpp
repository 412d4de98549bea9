// SPDX-License-Identifier: Apache-2.0

// Errors of the CUDA driver, with a driver of the test's own: no device is needed.

#include "headway/base/cuda_driver.hpp"

#include "headway/base/status.hpp"

#include <gtest/gtest.h>

#include <new>
#include <string>

namespace headway::base {
namespace {

/// A driver that knows the name of one error.
CudaDriver small_driver() {
  CudaDriver driver{};
  driver.streams.get_error_name = [](CUresult result, char const** name) {
    *name = result == CUDA_ERROR_INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" : nullptr;
    return *name == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  };
  return driver;
}

template <class Error>
std::string text_of_error(CUresult result) {
  try {
    check_driver(small_driver(), result, "cuMemMap");
  } catch (Error const& error) {
    return error.what();
  }
  return "no error";
}

TEST(CudaDriver, AnErrorNamesTheCallAndTheResult) {
  EXPECT_EQ(text_of_error<SystemError>(CUDA_ERROR_INVALID_VALUE), "cuMemMap: CUDA_ERROR_INVALID_VALUE");
  EXPECT_EQ(text_of_error<SystemError>(CUDA_SUCCESS), "no error");
}

TEST(CudaDriver, AnErrorThatTheDriverDoesNotKnowIsNumbered) {
  EXPECT_EQ(text_of_error<SystemError>(CUDA_ERROR_UNKNOWN), "cuMemMap: 999");
  EXPECT_EQ(error_name(CudaDriver{}, CUDA_ERROR_UNKNOWN), "999") << "a driver without cuGetErrorName";
}

TEST(CudaDriver, AShortageOfMemoryIsABadAllocThatNamesTheCall) {
  EXPECT_EQ(text_of_error<std::bad_alloc>(CUDA_ERROR_OUT_OF_MEMORY), "cuMemMap: 2");
}

}  // namespace
}  // namespace headway::base
