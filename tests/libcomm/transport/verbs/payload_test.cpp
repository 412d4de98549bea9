// SPDX-License-Identifier: Apache-2.0

// Payloads that the RDMA transport reads in place, and payloads that it copies to staging memory at the put. Small ones
// are copied. Memory of allocate() stays registered, so it is read in place from a smaller size on.

#include "endpoint_group.hpp"
#include "headway/comm/memory.hpp"
#include "test_bytes.hpp"
#include "transport/verbs/limits.hpp"
#include "verbs_transport.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace headway::comm {
namespace {

/// Puts of rank 0 to rank 1, each with a header.
class PayloadTest : public testing::Test {
 protected:
  static constexpr std::size_t kMaxBytes = 100'000;

  /// Puts `payload`. @returns whether it was free as soon as the put was accepted.
  bool put_is_copied(std::span<std::byte const> payload) {
    Tag const tag{.operation = next_operation_++};
    auto const header = test_bytes(40, tag.operation);
    ranks_.put(0, {.peer = 1, .offset = 128}, header, payload, tag);
    bool const is_copied = ranks_[0].flushed(1) == ranks_[0].put_count(1);
    EXPECT_TRUE(ranks_.poll_until([&] { return ranks_.heard(1).has(0, tag); }));
    auto const slot = ranks_[1].receive_buffer().subspan(128);
    EXPECT_TRUE(same_bytes(slot.first(header.size()), header)) << payload.size() << " bytes";
    EXPECT_TRUE(same_bytes(slot.subspan(kHeaderBytes, payload.size()), payload)) << payload.size() << " bytes";
    EXPECT_TRUE(ranks_.poll_until([&] { return ranks_[0].flushed(1) == ranks_[0].put_count(1); }));
    return is_copied;
  }

 private:
  EndpointGroup ranks_{Verbs::connect(2, 2 * kMaxBytes)};
  std::uint16_t next_operation_ = 0;
};

constexpr std::array kSizes{verbs::kMinInPlaceBytes - 1, verbs::kMinInPlaceBytes, verbs::kMaxCopiedBytes,
                            verbs::kMaxCopiedBytes + 1};

TEST_F(PayloadTest, ThoseThatStayRegisteredAreReadInPlaceUnlessTheyAreSmall) {
  auto const memory = allocate(kMaxBytes);
  for (std::size_t const size : kSizes) {
    std::span const payload(memory.get(), size);
    std::ranges::copy(test_bytes(size, size), payload.begin());
    EXPECT_EQ(put_is_copied(payload), size < verbs::kMinInPlaceBytes) << size << " bytes";
  }
}

TEST_F(PayloadTest, OthersAreReadInPlaceOnlyIfTheyAreLarge) {
  for (std::size_t const size : kSizes) {
    EXPECT_EQ(put_is_copied(test_bytes(size, size)), size <= verbs::kMaxCopiedBytes) << size << " bytes";
  }
}

}  // namespace
}  // namespace headway::comm
