// SPDX-License-Identifier: Apache-2.0

// The buffers of the all-to-all benchmark. A benchmark that does not notice wrong data measures nothing, so the tests
// try to deceive it: one wrong byte at any place, a result of an earlier round, blocks in the wrong order, nothing
// delivered.

#include "call_buffers.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <stdexcept>
#include <vector>

namespace headway::benchmarks {
namespace {

constexpr int kRanks = 3;

std::vector<CallBuffers> buffers_of_all_ranks(std::size_t bytes_per_rank) {
  std::vector<CallBuffers> all;
  for (int rank = 0; rank < kRanks; ++rank) all.emplace_back(Split::kZipf, bytes_per_rank, rank, kRanks);
  return all;
}

/// Delivers all blocks, as an all-to-all does.
void deliver(std::vector<CallBuffers> const& all) {
  for (int source = 0; source < kRanks; ++source) {
    for (int target = 0; target < kRanks; ++target) {
      auto const from = all[static_cast<std::size_t>(source)].sends().block(target);
      auto const to = all[static_cast<std::size_t>(target)].receives().block(source);
      ASSERT_EQ(from.size(), to.size());
      std::memcpy(to.data(), from.data(), from.size());
    }
  }
}

TEST(CallBuffers, AcceptAnAllToAllOfAnySize) {
  for (std::size_t const bytes : {0u, 1u, 7u, 8u, 1003u}) {
    auto all = buffers_of_all_ranks(bytes);
    for (auto& one : all) one.fill(5);  // Round 5: the data depend on the round.
    deliver(all);
    for (auto const& one : all) EXPECT_NO_THROW(one.check(5)) << bytes;
  }
}

TEST(CallBuffers, RefuseAResultWithAnyOneByteWrong) {
  auto all = buffers_of_all_ranks(50);
  for (auto& one : all) one.fill(5);
  deliver(all);
  auto const received = all[1].receives().all();
  for (std::byte& byte : received) {
    byte ^= std::byte{0x10};
    EXPECT_THROW(all[1].check(5), std::runtime_error);
    byte ^= std::byte{0x10};
  }
  EXPECT_NO_THROW(all[1].check(5));
}

TEST(CallBuffers, RefuseWhatWasNotDelivered) {
  auto all = buffers_of_all_ranks(3);
  for (auto& one : all) one.fill(5);
  for (auto const& one : all) {
    if (one.receives().all().empty()) continue;
    EXPECT_THROW(one.check(5), std::runtime_error);
  }
}

TEST(CallBuffers, RefuseTheResultOfAnEarlierRound) {
  auto all = buffers_of_all_ranks(64);
  for (auto& one : all) one.fill(1);
  deliver(all);
  EXPECT_THROW(all[0].check(2), std::runtime_error);
}

TEST(CallBuffers, RefuseBlocksInTheWrongPlace) {
  std::vector<CallBuffers> all;
  for (int rank = 0; rank < kRanks; ++rank) all.emplace_back(Split::kEven, 48, rank, kRanks);
  for (auto& one : all) one.fill(0);
  deliver(all);
  auto const first = all[0].receives().block(1);
  auto const second = all[0].receives().block(2);
  std::vector<std::byte> const kept(first.begin(), first.end());
  std::memcpy(first.data(), second.data(), first.size());
  std::memcpy(second.data(), kept.data(), second.size());
  EXPECT_THROW(all[0].check(0), std::runtime_error);
}

}  // namespace
}  // namespace headway::benchmarks
