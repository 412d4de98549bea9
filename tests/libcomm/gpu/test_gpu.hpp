// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cuda.h>
#include <dlfcn.h>

#include <cstddef>
#include <cstdlib>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace headway::comm {

/// The first GPU, through the CUDA driver. The constructor loads the driver as a CUDA program would.
class TestGpu {
 public:
  TestGpu() {
    // Ranks that are threads share the hardware queues of a process. The default of 8 is too few for streams that wait.
    ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    library_ = ::dlopen("libcuda.so.1", RTLD_NOW);
    if (library_ == nullptr) return;
    auto const init = find<decltype(&cuInit)>("cuInit");
    CUdevice device{};
    if (init(0) != CUDA_SUCCESS || find<decltype(&cuDeviceGet)>("cuDeviceGet")(&device, 0) != CUDA_SUCCESS) return;
    check(find<decltype(&cuDevicePrimaryCtxRetain)>("cuDevicePrimaryCtxRetain")(&context_, device));
    use_in_this_thread();
    is_there_ = true;
  }

  void use_in_this_thread() const { check(find<decltype(&cuCtxSetCurrent)>("cuCtxSetCurrent")(context_)); }
  /// Makes one more stream. It lives until the process ends.
  [[nodiscard]] CUstream stream() const {
    CUstream stream{};
    check(find<decltype(&cuStreamCreate)>("cuStreamCreate")(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
  }
  /// Waits for the work of a stream.
  void finish(void* stream) const {
    check(find<decltype(&cuStreamSynchronize)>("cuStreamSynchronize")(static_cast<CUstream>(stream)));
  }

  [[nodiscard]] bool is_there() const { return is_there_; }

  /// Allocates device memory. It lives until the process ends.
  [[nodiscard]] std::span<std::byte> allocate(std::size_t num_bytes) const {
    CUdeviceptr address{};
    check(find<decltype(&cuMemAlloc)>("cuMemAlloc_v2")(&address, num_bytes));
    return {reinterpret_cast<std::byte*>(address), num_bytes};
  }
  /// Allocates from the device's memory pool, whose memory belongs to no context.
  [[nodiscard]] std::span<std::byte> allocate_from_pool(std::size_t num_bytes) const {
    CUdeviceptr address{};
    check(find<decltype(&cuMemAllocAsync)>("cuMemAllocAsync")(&address, num_bytes, nullptr));
    check(find<decltype(&cuStreamSynchronize)>("cuStreamSynchronize")(nullptr));
    return {reinterpret_cast<std::byte*>(address), num_bytes};
  }
  [[nodiscard]] std::span<std::byte> allocate_managed(std::size_t num_bytes) const {
    CUdeviceptr address{};
    auto const allocate = find<decltype(&cuMemAllocManaged)>("cuMemAllocManaged");
    check(allocate(&address, num_bytes, CU_MEM_ATTACH_GLOBAL));
    return {reinterpret_cast<std::byte*>(address), num_bytes};
  }
  [[nodiscard]] std::span<std::byte> allocate_pinned(std::size_t num_bytes) const {
    void* address = nullptr;
    check(find<decltype(&cuMemHostAlloc)>("cuMemHostAlloc")(&address, num_bytes, 0));
    return {static_cast<std::byte*>(address), num_bytes};
  }
  void write(std::span<std::byte> on_device, std::span<std::byte const> bytes) const {
    auto const copy = find<decltype(&cuMemcpyHtoD)>("cuMemcpyHtoD_v2");
    check(copy(reinterpret_cast<CUdeviceptr>(on_device.data()), bytes.data(), bytes.size()));
  }
  [[nodiscard]] std::vector<std::byte> read(std::span<std::byte const> on_device) const {
    std::vector<std::byte> bytes(on_device.size());
    auto const copy = find<decltype(&cuMemcpyDtoH)>("cuMemcpyDtoH_v2");
    check(copy(bytes.data(), reinterpret_cast<CUdeviceptr>(on_device.data()), bytes.size()));
    return bytes;
  }

 private:
  template <typename Function>
  [[nodiscard]] Function find(char const* name) const {
    return reinterpret_cast<Function>(::dlsym(library_, name));
  }
  static void check(CUresult result) {
    if (result != CUDA_SUCCESS) throw std::runtime_error("CUDA error " + std::to_string(result));
  }

  void* library_ = nullptr;
  CUcontext context_{};
  bool is_there_ = false;
};

/// Tests that need a GPU.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!gpu_.is_there()) GTEST_SKIP() << "this host has no GPU that CUDA's driver finds";
  }

  TestGpu gpu_;
};

}  // namespace headway::comm
