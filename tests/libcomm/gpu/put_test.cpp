// SPDX-License-Identifier: Apache-2.0

// GPU memory is registered and moved over RDMA. Needs a GPU and an RDMA device.
//
// A put writes a header, and kHeaderBytes after it a payload, into the peer's receive buffer; into a window it writes
// the payload alone. Then its tag becomes visible to the peer. EndpointGroup::heard(rank) has the tags that arrived at
// a rank.

#include "endpoint_group.hpp"
#include "test_bytes.hpp"
#include "test_gpu.hpp"
#include "transport/verbs/device.hpp"
#include "verbs_transport.hpp"

#include <gtest/gtest.h>

#include <cstdint>

namespace headway::comm {
namespace {

/// Needs a GPU and an RDMA device; skipped otherwise.
class GpuPutTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped() && verbs::find_addresses().empty()) GTEST_SKIP() << "this host has no RDMA device that is up";
  }
};

TEST_F(GpuPutTest, PayloadsOfAnySizeAreReadFromTheDevice) {
  EndpointGroup ranks(Verbs::connect(2, std::size_t{4} << 20));
  auto const header = test_bytes(16, 5);
  std::uint16_t operation = 0;
  for (std::size_t const size : {1U, 8U, 4097U, 65536U, 65537U, 3000001U}) {
    auto const bytes = test_bytes(size, operation);
    auto const on_device = gpu_.allocate(size + 24).subspan(24);
    gpu_.write(on_device, bytes);
    Tag const tag{.operation = operation++};
    ranks.put(0, {.peer = 1}, header, on_device, tag);
    ASSERT_TRUE(ranks.poll_until([&] { return ranks.heard(1).has(0, tag); })) << size << " bytes";
    EXPECT_TRUE(same_bytes(ranks[1].receive_buffer().first(header.size()), header)) << size << " bytes";
    EXPECT_TRUE(same_bytes(ranks[1].receive_buffer().subspan(kHeaderBytes, size), bytes)) << size << " bytes";
  }
}

TEST_F(GpuPutTest, APeerWritesToAWindowOnTheDevice) {
  constexpr WindowId kWindow = 3;
  EndpointGroup ranks(Verbs::connect(2, std::size_t{1} << 20));
  auto const bytes = test_bytes(300'000, 7);
  auto const on_device = gpu_.allocate(bytes.size());
  ASSERT_TRUE(ranks[1].open_window(0, kWindow, on_device));
  ranks.put(1, {.peer = 0}, {}, {}, Tag{.operation = 1});  // Tells rank 0 that the window is open.
  ASSERT_TRUE(ranks.poll_until([&] { return ranks.heard(0).has(1, Tag{.operation = 1}); }));
  ranks.put(0, {.peer = 1, .window = kWindow}, {}, bytes, Tag{.operation = 2});
  ASSERT_TRUE(ranks.poll_until([&] { return ranks.heard(1).has(0, Tag{.operation = 2}); }));
  EXPECT_TRUE(same_bytes(gpu_.read(on_device), bytes));
  ranks[1].close_window(0, kWindow);
}

}  // namespace
}  // namespace headway::comm
