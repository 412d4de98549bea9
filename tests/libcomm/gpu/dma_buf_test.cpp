// SPDX-License-Identifier: Apache-2.0

// GPU memory is recognised and exported: the parts that need no RDMA device.

#include "headway/comm/status.hpp"
#include "system/gpu_memory.hpp"
#include "test_gpu.hpp"

#include <gtest/gtest.h>

#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace headway::comm {
namespace {

using DmaBufTest = GpuTest;

std::uint64_t page_bytes() { return static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)); }

std::uint64_t offset_in_page(std::span<std::byte const> memory) {
  return reinterpret_cast<std::uint64_t>(memory.data()) % page_bytes();
}

/// Size of the buffer as the kernel reports it.
std::uint64_t size_of(DmaBuf const& buffer) {
  return static_cast<std::uint64_t>(::lseek(buffer.fd.get(), 0, SEEK_END));
}

TEST_F(DmaBufTest, MemoryOfTheDeviceIsKnownFromItsFirstByteToItsLast) {
  GpuMemory const gpu;
  auto const memory = gpu_.allocate(5'000'000);
  EXPECT_TRUE(gpu.contains(memory));
  EXPECT_TRUE(gpu.contains(memory.subspan(4'321, 8)));
  EXPECT_TRUE(gpu.contains(memory.last(1)));
  EXPECT_FALSE(gpu.contains(memory.first(0)));
}

TEST_F(DmaBufTest, MemoryThatACpuMayTouchIsNotMemoryOfTheDevice) {
  GpuMemory const gpu;
  std::array<std::byte, 64> const on_stack{};
  EXPECT_FALSE(gpu.contains(on_stack));
  EXPECT_FALSE(gpu.contains(std::vector<std::byte>(1'000'000)));
  EXPECT_FALSE(gpu.contains(gpu_.allocate_pinned(4096)));
  EXPECT_FALSE(gpu.contains(gpu_.allocate_managed(4096)));
}

// ctest runs it in its own process. After other tests the driver would already be loaded.
TEST(DmaBuf, ADriverThatIsLoadedLaterIsSeenAtTheNextLook) {
  bool const was_loaded = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) != nullptr;
  GpuMemory gpu;
  TestGpu const device;
  if (!device.is_there()) GTEST_SKIP() << "this host has no GPU that CUDA's driver finds";
  auto const memory = device.allocate(64);
  EXPECT_EQ(gpu.contains(memory), was_loaded);
  gpu.look_for_driver();
  EXPECT_TRUE(gpu.contains(memory));
}

TEST_F(DmaBufTest, AnExportHoldsThePagesOfTheMemoryAndSaysWhereItBegins) {
  GpuMemory const gpu;
  std::uint64_t const page = page_bytes();
  auto const memory = gpu_.allocate(8 << 20);
  ASSERT_EQ(offset_in_page(memory), 0U);

  auto const whole = gpu.export_dma_buf(memory);
  EXPECT_EQ(whole.offset, 0U);
  EXPECT_EQ(size_of(whole), memory.size());

  auto const middle = gpu.export_dma_buf(memory.subspan(5 * page + 24, page));
  EXPECT_EQ(middle.offset, 24U);
  EXPECT_EQ(size_of(middle), 2 * page);

  auto const end = gpu.export_dma_buf(memory.last(8));
  EXPECT_EQ(end.offset, page - 8);
  EXPECT_EQ(size_of(end), page);
}

TEST_F(DmaBufTest, AllocationsThatShareAPageAreExportedToo) {
  GpuMemory const gpu;
  for (int i = 0; i < 4; ++i) {
    auto const memory = gpu_.allocate(100);
    auto const exported = gpu.export_dma_buf(memory);
    EXPECT_EQ(exported.offset, offset_in_page(memory));
    EXPECT_GE(size_of(exported), exported.offset + memory.size());
  }
}

TEST_F(DmaBufTest, AThreadThatNeverUsedCudaExportsMemoryOfEveryKind) {
  GpuMemory const gpu;
  for (auto const memory : {gpu_.allocate(8 << 20), gpu_.allocate_from_pool(8 << 20)}) {
    std::jthread([&] {
      EXPECT_TRUE(gpu.contains(memory));
      try {
        EXPECT_EQ(size_of(gpu.export_dma_buf(memory)), memory.size());
      } catch (SystemError const& error) {
        ADD_FAILURE() << error.what();
      }
    }).join();
  }
}

TEST_F(DmaBufTest, MemoryBeyondTheAllocationIsRefusedWithTheDriversCode) {
  GpuMemory const gpu;
  auto const memory = gpu_.allocate(8 << 20);
  try {
    auto const exported = gpu.export_dma_buf({memory.data(), std::size_t{1} << 40});
    FAIL() << "exported " << size_of(exported) << " bytes";
  } catch (SystemError const& error) {
    EXPECT_NE(std::string(error.what()).find("CUDA error"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace headway::comm
