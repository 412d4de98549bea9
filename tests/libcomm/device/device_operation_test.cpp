// SPDX-License-Identifier: Apache-2.0

// Failures of operations on a device. The driver is a table of functions that do nothing, so the test needs no device.
//
// Streams wait for words in shared memory. A peer that fails sets its `peer_failed` word and then lets the waits of the
// streams pass; the reason follows in a message. The operation is done when the reason has come, or after 1 s without
// it.

#include "device/device_operation.hpp"

#include <gtest/gtest.h>

#include <cuda.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

namespace headway::comm {
namespace {

constexpr int kPeer = 1;
constexpr auto kPatience = std::chrono::seconds(20);

/// A driver whose calls succeed. Host memory has the same address on the device.
std::shared_ptr<base::CudaDriver const> make_driver() {
  base::CudaDriver driver{};
  driver.device_get = [](CUdevice*, int) { return CUDA_SUCCESS; };
  driver.device_primary_ctx_retain = [](CUcontext*, CUdevice) { return CUDA_SUCCESS; };
  driver.device_primary_ctx_release = [](CUdevice) { return CUDA_SUCCESS; };
  driver.ctx_push_current = [](CUcontext) { return CUDA_SUCCESS; };
  driver.ctx_pop_current = [](CUcontext*) { return CUDA_SUCCESS; };
  driver.streams.mem_host_register = [](void*, std::size_t, unsigned) { return CUDA_SUCCESS; };
  driver.streams.mem_host_unregister = [](void*) { return CUDA_SUCCESS; };
  driver.streams.mem_host_get_device_pointer = [](CUdeviceptr* address, void* host, unsigned) {
    *address = reinterpret_cast<CUdeviceptr>(host);
    return CUDA_SUCCESS;
  };
  driver.streams.event_query = [](CUevent) { return CUDA_SUCCESS; };  // No stream waits any more.
  return std::make_shared<base::CudaDriver const>(driver);
}

/// An operation that waits for data of kPeer on a remote link (one between hosts), whose memory lies in this process.
class DeviceOperationTest : public testing::Test {
 protected:
  DeviceOperationTest() {
    peer_copy::LinkLayout layout;
    layout.add_channel(/*slot_bytes=*/4096, /*num_slots=*/2);
    link_ = std::make_shared<peer_copy::Link>(context_, layout);
    operation_.await({.link = link_,
                      .peer = kPeer,
                      .channel = 0,
                      .word = &peer_copy::SyncWords::arrived,
                      .value = 1,
                      .num_bytes = 8});
  }

  void release_waits_as_peer() { link_->sync_words(0).peer_failed.store(1, std::memory_order_release); }
  void fail_group(std::string const& reason) {
    failure_->status = {StatusCode::kAborted, reason};
    failure_->is_set.store(true, std::memory_order_release);
  }

  std::shared_ptr<peer_copy::Context const> context_ = std::make_shared<peer_copy::Context const>(make_driver(), 0);
  std::shared_ptr<DeviceFailure> failure_ = std::make_shared<DeviceFailure>();
  std::shared_ptr<peer_copy::Link> link_;
  DeviceOperationImpl operation_{context_, failure_, /*flight=*/{}, Deadline::max()};
};

TEST_F(DeviceOperationTest, IsDoneWithoutFailureOnceItsEventIs) {
  EXPECT_TRUE(operation_.done());
  EXPECT_TRUE(operation_.status().ok());
  release_waits_as_peer();
  fail_group("rank 1 left");
  EXPECT_TRUE(operation_.done()) << "a later failure does not matter";
  EXPECT_TRUE(operation_.status().ok());
}

TEST_F(DeviceOperationTest, WaitsForTheReasonOfAPeerThatHasReleasedItsWaits) {
  release_waits_as_peer();
  EXPECT_FALSE(operation_.done());
  EXPECT_TRUE(operation_.status().ok()) << "the failure may not show before its reason";
  fail_group("rank 1 wanted 3 bytes, rank 0 has 4");
  EXPECT_TRUE(operation_.done());
  EXPECT_EQ(operation_.status().message(), "rank 1 wanted 3 bytes, rank 0 has 4");
}

TEST_F(DeviceOperationTest, NamesThePeerIfNoReasonComesWithinASecond) {
  release_waits_as_peer();
  auto const begin = Clock::now();
  while (!operation_.done() && Clock::now() < begin + kPatience)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_GE(Clock::now() - begin, std::chrono::seconds(1));
  EXPECT_LT(Clock::now() - begin, kPatience);
  auto const text = std::string(operation_.status().message());
  EXPECT_NE(text.find("rank 1 failed"), std::string::npos) << text;
  EXPECT_NE(text.find("8 bytes from rank 1"), std::string::npos) << text;
}

}  // namespace
}  // namespace headway::comm
