#include "engines/verbs/queue_pair_table.hpp"

#include <gtest/gtest.h>

#include <cstdint>

namespace headway::comm::verbs {
namespace {

TEST(QueuePairTable, FindsPeersWhoseNumbersShareAPlace) {
  QueuePairTable table(3);
  table.add(7, 0);
  table.add(15, 1);
  table.add(0x800007, 2);
  EXPECT_EQ(table.find(7), 0);
  EXPECT_EQ(table.find(15), 1);
  EXPECT_EQ(table.find(0x800007), 2);
}

TEST(QueuePairTable, ANumberThatWasNeverAddedHasNoPeer) {
  QueuePairTable table(4);
  EXPECT_EQ(table.find(1), -1);
  for (int peer = 0; peer < 4; ++peer) table.add(16 + static_cast<std::uint32_t>(peer), peer);
  EXPECT_EQ(table.find(1), -1);
  EXPECT_EQ(table.find(16 + 8), -1);
}

TEST(QueuePairTable, OthersAreFoundAfterOneIsRemoved) {
  QueuePairTable table(2);
  table.add(4, 0);
  table.add(8, 1);
  table.remove(4);
  EXPECT_EQ(table.find(4), -1);
  EXPECT_EQ(table.find(8), 1);
}

}  // namespace
}  // namespace headway::comm::verbs
