// SPDX-License-Identifier: Apache-2.0

// Reach of RDMA addresses: who can connect to whom. The rule is pure arithmetic on address kinds and subnets, so it is
// tested without a device: RoCE with IPv4 does not reach IPv6, link-local not routable, and InfiniBand not another
// subnet.

#include "transport/rdma_reach.hpp"

#include "connect_in_threads.hpp"
#include "headway/base/file_descriptor.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <thread>
#include <vector>

namespace headway::comm {
namespace {

using Kind = RdmaReach::Kind;

TEST(RdmaReachTest, OnlyAddressesOfOneKindReachEachOther) {
  constexpr std::array kKinds{Kind::kNone, Kind::kInfiniBand, Kind::kRoceIpv4, Kind::kRoceIpv6, Kind::kRoceLinkLocal};
  for (Kind const own : kKinds) {
    for (Kind const peer : kKinds) {
      bool const expected = own == peer && own != Kind::kNone;
      EXPECT_EQ(RdmaReach{.kind = own}.reaches({.kind = peer}), expected);
    }
  }
}

TEST(RdmaReachTest, InfiniBandDoesNotLeaveItsSubnet) {
  RdmaReach const own{.kind = Kind::kInfiniBand, .subnet_prefix = 1};
  EXPECT_TRUE(own.reaches({.kind = Kind::kInfiniBand, .subnet_prefix = 1}));
  EXPECT_FALSE(own.reaches({.kind = Kind::kInfiniBand, .subnet_prefix = 2}));
}

/// Reach that rank `rank` of three announces.
RdmaReach reach_of(int rank) {
  return {.kind = rank == 1 ? Kind::kNone : Kind::kInfiniBand, .subnet_prefix = static_cast<std::uint64_t>(rank) + 5};
}

void expect_reaches_of(std::vector<RdmaReach> const& found, int rank, bool are_told) {
  for (int peer = 0; peer < 3; ++peer) {
    RdmaReach const expected = are_told && peer != rank ? reach_of(peer) : RdmaReach();
    EXPECT_EQ(found[static_cast<std::size_t>(peer)].kind, expected.kind) << rank << " of " << peer;
    EXPECT_EQ(found[static_cast<std::size_t>(peer)].subnet_prefix, expected.subnet_prefix) << rank << " of " << peer;
  }
}

TEST(RdmaReachTest, RanksOfOtherHostsLearnIt) {
  for (auto const transport :
       {Transport::kTcp, Transport::kShm}) {  // Ranks over tcp count as being on different hosts.
    MemoryStore store;
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        auto const control_sockets = connect_test_sockets(rank, 3, 4096, store, transport);
        expect_reaches_of(exchange_rdma_reach(control_sockets, reach_of(rank)), rank, transport == Transport::kTcp);
      });
    }
  }
}

}  // namespace
}  // namespace headway::comm
