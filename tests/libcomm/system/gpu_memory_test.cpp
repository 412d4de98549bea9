// SPDX-License-Identifier: Apache-2.0

// GpuMemory tells device memory from host memory. These facts hold in every process, with or without a GPU.
// tests/libcomm/gpu has the tests that need one.

#include "system/gpu_memory.hpp"

#include "headway/comm/status.hpp"
#include "test_bytes.hpp"

#include <gtest/gtest.h>

#include <dlfcn.h>

#include <array>

namespace headway::comm {
namespace {

bool has_loaded_cuda() { return ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) != nullptr; }

TEST(GpuMemory, HostMemoryIsNotMemoryOfADevice) {
  GpuMemory const gpu;
  std::array<std::byte, 64> const on_stack{};
  auto const on_heap = test_bytes(1000, 3);
  EXPECT_FALSE(gpu.contains(on_stack));
  EXPECT_FALSE(gpu.contains(on_heap));
  EXPECT_FALSE(gpu.contains({}));
}

TEST(GpuMemory, AskingLoadsNoDriver) {
  ASSERT_FALSE(has_loaded_cuda()) << "this program is not to use CUDA";
  GpuMemory gpu;
  auto const memory = test_bytes(100, 1);
  EXPECT_FALSE(gpu.contains(memory));
  ASSERT_NE(::dlopen("libresolv.so.2", RTLD_NOW), nullptr);  // A new library triggers a new search.
  gpu.look_for_driver();
  EXPECT_FALSE(gpu.contains(memory));
  EXPECT_FALSE(has_loaded_cuda());
}

TEST(GpuMemory, HostMemoryIsNotExported) {
  auto const memory = test_bytes(100, 1);
  EXPECT_ANY_THROW(static_cast<void>(GpuMemory().export_dma_buf(memory)));
}

}  // namespace
}  // namespace headway::comm
