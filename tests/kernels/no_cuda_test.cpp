// SPDX-License-Identifier: Apache-2.0

// Entry points of a build without CUDA. Only such builds compile this file.

#include "headway/kernels/hstu_attention_cuda.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

namespace headway::kernels {
namespace {

TEST(NoCuda, AttentionOnADeviceSaysThatThisBuildHasNone) {
  EXPECT_THROW(hstu_attention_forward_async({}, nullptr, nullptr), std::runtime_error);
  EXPECT_THROW(hstu_attention_backward_async({}, nullptr, nullptr), std::runtime_error);
  EXPECT_THROW(static_cast<void>(hstu_attention_backward_workspace_bytes({})), std::runtime_error);
}

}  // namespace
}  // namespace headway::kernels
