// SPDX-License-Identifier: Apache-2.0

// The table that maps QP numbers to (peer, rail); a rail is one of several queue pairs to a peer. It is a hash table
// with open addressing, so the cases are colliding numbers, and a look-up beyond an entry that was removed.

#include "transport/verbs/queue_pair_table.hpp"

#include <gtest/gtest.h>

#include <cstdint>

namespace headway::comm::verbs {
namespace {

TEST(QueuePairTable, FindsPeersWhoseNumbersShareAPlace) {
  QueuePairTable table(3);  // 8 entries; all three numbers are 7 modulo 8.
  table.add(7, {.peer = 0});
  table.add(15, {.peer = 1, .rail = 0});
  table.add(0x800007, {.peer = 1, .rail = 3});
  EXPECT_EQ(table.find(7).peer, 0);
  EXPECT_EQ(table.find(15).peer, 1);
  EXPECT_EQ(table.find(15).rail, 0U);
  EXPECT_EQ(table.find(0x800007).peer, 1);
  EXPECT_EQ(table.find(0x800007).rail, 3U);
}

TEST(QueuePairTable, ANumberThatWasNeverAddedHasNoPeer) {
  QueuePairTable table(4);
  EXPECT_LT(table.find(1).peer, 0);
  for (int peer = 0; peer < 4; ++peer) table.add(16 + static_cast<std::uint32_t>(peer), {.peer = peer});
  EXPECT_LT(table.find(1).peer, 0);
  EXPECT_LT(table.find(16 + 8).peer, 0);  // 24 and 16 are equal modulo the 8 entries.
}

TEST(QueuePairTable, OthersAreFoundAfterOneIsRemoved) {
  QueuePairTable table(2);  // 4 entries: 8 was put behind 4.
  table.add(4, {.peer = 0});
  table.add(8, {.peer = 1});
  table.remove(4);
  EXPECT_LT(table.find(4).peer, 0);
  EXPECT_EQ(table.find(8).peer, 1);
}

}  // namespace
}  // namespace headway::comm::verbs
