// SPDX-License-Identifier: Apache-2.0

// The cache of memory registrations, and exchanges whose blocks take each of the paths that depend on it: copied to
// staging memory, read in place, or written straight to an output in pieces. Rails are queue pairs to one peer.
// Needs an RDMA device.

#include "headway/comm/group.hpp"
#include "headway/comm/memory.hpp"
#include "headway/comm/store.hpp"
#include "test_bytes.hpp"
#include "transport/verbs/device.hpp"
#include "transport/verbs/registrations.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

namespace headway::comm {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

/// The cache of memory regions on the first device of this host.
class RegistrationsTest : public testing::Test {
 protected:
  /// A cache that keeps at most `limit_bytes` of memory registered.
  verbs::Registrations with_limit(std::size_t limit_bytes) { return {domain_.get(), limit_bytes}; }
  static std::span<std::byte const> of(std::shared_ptr<std::byte> const& memory, std::size_t size) {
    return {memory.get(), size};
  }

  verbs::Context context_ = verbs::open_device(verbs::find_addresses().front().device);
  verbs::ProtectionDomain domain_{verbs::library().alloc_pd(context_.get())};
};

TEST_F(RegistrationsTest, MemoryOfThePoolStaysRegisteredAndOtherMemoryDoesNot) {
  auto registrations = with_limit(16 * kMiB);
  auto const memory = allocate(4 * kMiB);
  auto const* const first = registrations.find_or_register(of(memory, kMiB), kAccess).get();
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(registrations.find_or_register(of(memory, 4 * kMiB), kAccess).get(), first);
  std::vector<std::byte> const other(kMiB);
  auto const once = registrations.find_or_register(other, 0);
  ASSERT_NE(once, nullptr);
  EXPECT_EQ(once.use_count(), 1) << "nobody but the caller holds it";
}

TEST_F(RegistrationsTest, TheOldestUseGoesFirstWhereTheLimitIsReached) {
  auto registrations = with_limit(8 * kMiB);
  auto const a = allocate(4 * kMiB), b = allocate(4 * kMiB), c = allocate(4 * kMiB), huge = allocate(16 * kMiB);
  auto const is_kept = [&](std::shared_ptr<std::byte> const& memory) {
    return registrations.find_or_register(of(memory, kMiB), kAccess).use_count() > 1;
  };
  std::weak_ptr<ibv_mr> const of_a = registrations.find_or_register(of(a, kMiB), kAccess);
  std::weak_ptr<ibv_mr> const of_b = registrations.find_or_register(of(b, kMiB), kAccess);
  EXPECT_TRUE(is_kept(a) && is_kept(c));
  EXPECT_FALSE(of_a.expired());
  EXPECT_TRUE(of_b.expired());
  EXPECT_FALSE(is_kept(huge)) << "larger than the limit";
  registrations.clear();
  EXPECT_TRUE(of_a.expired());
}

TEST_F(RegistrationsTest, WhatIsOnlySoughtIsKeptWhereThereIsRoomAndDropsNothing) {
  auto registrations = with_limit(4 * kMiB);
  auto const a = allocate(4 * kMiB), b = allocate(4 * kMiB);
  auto const kept = registrations.find_kept(of(a, 1000));
  ASSERT_NE(kept, nullptr);
  EXPECT_EQ(registrations.find_kept(of(a, 4 * kMiB)), kept);
  EXPECT_EQ(registrations.find_kept(of(b, 1000)), nullptr) << "no room beside the first";
  EXPECT_EQ(registrations.find_kept(of(a, 1000)), kept);
  std::vector<std::byte> const other(kMiB);
  EXPECT_EQ(registrations.find_kept(other), nullptr);
  auto without_cache = with_limit(0);
  EXPECT_EQ(without_cache.find_kept(of(a, 1000)), nullptr);
}

TEST_F(RegistrationsTest, WhatThePoolHasLetGoOfIsGivenUp) {
  auto registrations = with_limit(std::size_t{4} << 30);
  auto memory = allocate(600 * kMiB), other = allocate(600 * kMiB);
  std::weak_ptr<ibv_mr> const kept = registrations.find_or_register(of(memory, kMiB), kAccess);
  ASSERT_FALSE(kept.expired());
  memory.reset();
  other.reset();  // Both exceed the pool's limit together, so it frees the older one.
  auto const next = allocate(kMiB);
  static_cast<void>(registrations.find_or_register(of(next, kMiB), kAccess));
  EXPECT_TRUE(kept.expired());
}

/// Two ranks, threads of this process, exchange blocks of `bytes` in memory from `make`, round by round.
void exchange_blocks(std::size_t bytes, int num_rails, int num_rounds,
                     std::function<std::shared_ptr<std::byte>(std::size_t)> const& make) {
  MemoryStore store;
  auto const run = [&](int rank) {
    GroupOptions options;
    options.transport = Transport::kVerbs;
    options.rdma_rails = num_rails;
    options.timeout = options.connect_timeout = std::chrono::seconds(60);
    auto const group = Group::connect(rank, 2, store, options);
    auto const source = make(bytes), output = make(bytes);
    for (int round = 0; round < num_rounds; ++round) {
      auto const seed_of = [&](int sender) { return static_cast<std::uint64_t>(2 * round + sender); };
      auto const sent = test_bytes(bytes, seed_of(rank));
      std::ranges::copy(sent, source.get());
      std::array<std::span<std::byte const>, 2> sends{};
      std::array<std::span<std::byte>, 2> receives{};
      auto const peer = static_cast<std::size_t>(1 - rank);
      sends[peer] = {source.get(), bytes};
      receives[peer] = {output.get(), bytes};
      Status const status = group->all_to_all_v_and_wait({.sends = sends, .receives = receives});
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_TRUE(same_bytes(receives[peer], test_bytes(bytes, seed_of(1 - rank)))) << "round " << round;
    }
    EXPECT_TRUE(group->wait(*group->barrier()).ok());
  };
  std::jthread const other([&] { run(1); });
  run(0);
}

std::shared_ptr<std::byte> make_plain(std::size_t bytes) {
  auto const all = std::make_shared<std::vector<std::byte>>(bytes);
  return {all, all->data()};
}

TEST(BlocksThatFitTheirSlotsTest, AreReadInMemoryOfThePool) { exchange_blocks(40'000, 2, 50, allocate); }
TEST(BlocksThatFitTheirSlotsTest, AreReadWhereTheyAreIfTheyAreLarge) { exchange_blocks(100'000, 1, 20, make_plain); }
TEST(LargeBlocksTest, GoStraightToAnyOutput) { exchange_blocks(3 * kMiB + 5, 1, 4, make_plain); }
TEST(LargeBlocksTest, GoStraightToAnOutputOfThePool) { exchange_blocks(3 * kMiB + 5, 1, 4, allocate); }
TEST(LargeBlocksTest, TakeTurnsOnSeveralQueuePairs) { exchange_blocks(9 * kMiB + 1, 4, 3, allocate); }
TEST(LargeBlocksTest, MayHaveMorePiecesThanMayBeUnderWay) { exchange_blocks(70 * kMiB, 2, 1, make_plain); }

}  // namespace
}  // namespace headway::comm
