// SPDX-License-Identifier: Apache-2.0

// Receive buffers in parts: each rank writes only to its part of a peer's buffer, and maps only this part.

#include "connect_in_threads.hpp"
#include "endpoint_conformance.hpp"
#include "test_bytes.hpp"
#include "transport/shm/endpoint.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>

namespace headway::comm {
namespace {

/// shm with one part per rank in each receive buffer.
struct ShmInParts {
  static constexpr char const* kName = "shm_in_parts";
  static std::unique_ptr<Endpoint> connect_rank(int rank, int size, std::size_t receive_buffer_bytes, Store& store) {
    return make_shm_endpoint(rank, size, connect_test_sockets(rank, size, receive_buffer_bytes, store),
                             {.receive_buffer_bytes = receive_buffer_bytes,
                              .part_bytes = receive_buffer_bytes / static_cast<unsigned>(size)});
  }
  static std::vector<std::unique_ptr<Endpoint>> connect(int size, std::size_t receive_buffer_bytes) {
    return connect_in_threads<ShmInParts>(size, receive_buffer_bytes);
  }
};

// Other suites put to offsets inside another rank's part.
INSTANTIATE_TEST_SUITE_P(Transport, TrafficConformance, TestedTransports<ShmInParts>::in_threads(), transport_name);

constexpr std::size_t kPart = 64 * 1000;  ///< A multiple of 64, but not of the page size.

EndpointGroup connect_parts(int size, std::size_t part_bytes = kPart) {
  return EndpointGroup(ShmInParts::connect(size, part_bytes * static_cast<unsigned>(size)));
}

std::size_t address_space_bytes() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

TEST(ShmParts, APutFillsItsPartToTheLastByteAndTouchesNoOther) {
  auto ranks = connect_parts(3);
  auto const receive_buffer = ranks[0].receive_buffer();
  auto const large = test_bytes(kPart - kHeaderBytes, 1), small = test_bytes(20, 2);
  ranks.put(1, {.peer = 0, .offset = kPart}, {}, large, Tag{});
  ASSERT_TRUE(ranks.poll_until([&] { return ranks.heard(0).has(1, Tag{}); }));
  EXPECT_TRUE(same_bytes(receive_buffer.subspan(kPart + kHeaderBytes, large.size()), large));
  EXPECT_TRUE(all_zero(receive_buffer.first(kPart)) && all_zero(receive_buffer.subspan(2 * kPart)));

  ranks.put(2, {.peer = 0, .offset = 2 * kPart}, {}, small, Tag{});  // A small payload travels inside the notification.
  ASSERT_TRUE(ranks.poll_until([&] { return ranks.heard(0).has(2, Tag{}); }));
  EXPECT_TRUE(same_bytes(receive_buffer.subspan(2 * kPart + kHeaderBytes, small.size()), small));
  EXPECT_TRUE(all_zero(receive_buffer.first(kPart)));
}

TEST(ShmParts, APutOutsideOfTheOwnPartIsAUsageErrorWithNoEffect) {
  auto ranks = connect_parts(3);
  auto const payload = test_bytes(100, 3);
  for (std::uint64_t const offset : {std::uint64_t{0}, std::uint64_t{kPart - 64}, std::uint64_t{2 * kPart - 128},
                                     std::uint64_t{2 * kPart}, std::numeric_limits<std::uint64_t>::max() / 64 * 64}) {
    EXPECT_THROW((void)ranks[1].put({.peer = 0, .offset = offset}, {}, payload, Tag{}), UsageError) << offset;
  }
  EXPECT_EQ(ranks[1].put_count(0), 0U);
  ranks.put(1, {.peer = 0}, {}, {}, Tag{});  // A tag without data writes nothing, so any offset is right.
  ASSERT_TRUE(ranks.poll_until([&] { return ranks.heard(0).has(1, Tag{}); }));
  EXPECT_TRUE(all_zero(ranks[0].receive_buffer()));
}

TEST(ShmParts, AWordIsClaimedInTheClaimersPartByItAndByTheOwner) {
  auto ranks = connect_parts(3);
  if (!ranks[1].traits(0).can_get) GTEST_SKIP() << "this host does not let ranks read each other's memory";
  constexpr std::uint64_t kWord = kPart + 640;
  EXPECT_TRUE(ranks[1].claim(0, kWord, 1));
  EXPECT_FALSE(ranks[0].claim(0, kWord, 1));
  EXPECT_TRUE(ranks[0].claim(0, kWord, 2));
  EXPECT_FALSE(ranks[1].claim(0, kWord, 2));
  for (std::uint64_t const offset : {std::uint64_t{0}, std::uint64_t{kPart - 8}, std::uint64_t{2 * kPart}}) {
    EXPECT_THROW((void)ranks[1].claim(0, offset, 1), UsageError) << offset;
  }
}

TEST(ShmParts, ARankMapsOnePartOfEachPeersReceiveBuffer) {
  constexpr int kRanks = 8;
  constexpr std::size_t kLargePart = std::size_t{64} << 20;
  std::size_t const before = address_space_bytes();
  auto const ranks = connect_parts(kRanks, kLargePart);
  // All ranks are in this process. Huge pages and notification queues (inboxes) need a little more than the parts.
  // Connecting threads need stacks and heaps.
  constexpr std::size_t kThreads = std::size_t{2} << 30;
  constexpr std::size_t kReceiveBuffers = kRanks * kRanks * kLargePart;
  constexpr std::size_t kParts = kRanks * (kRanks - 1) * (kLargePart + (std::size_t{8} << 20));
  EXPECT_LT(address_space_bytes() - before, kReceiveBuffers + kParts + kThreads);
}

}  // namespace
}  // namespace headway::comm
