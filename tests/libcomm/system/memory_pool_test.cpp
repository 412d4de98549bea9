// SPDX-License-Identifier: Apache-2.0

// The pool behind allocate(): freed blocks serve later allocations of their size, up to a limit, and a block can be
// found by any address inside it. RDMA registrations depend on both.

#include "system/memory_pool.hpp"

#include "headway/comm/memory.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

namespace headway::comm {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(MemoryPoolTest, MemoryIsAlignedToPagesAndUsableToItsEnd) {
  for (std::size_t const size : {std::size_t{0}, std::size_t{1}, 5 * kMiB + 3}) {
    auto const memory = allocate(size);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.get()) % 4096, 0U);
    for (std::size_t i = 0; i < size; i += 1000) memory.get()[i] = std::byte{1};
  }
}

TEST(MemoryPoolTest, FreedMemoryServesTheNextAllocationOfItsSize) {
  auto const pool = std::make_shared<MemoryPool>(8 * kMiB);
  auto const* const first = pool->allocate(3 * kMiB).get();
  EXPECT_EQ(pool->allocate(3 * kMiB).get(), first);
  EXPECT_NE(pool->allocate(100).get(), first) << "of another size";
}

TEST(MemoryPoolTest, ABlockIsFoundByWhatLiesInsideIt) {
  auto const pool = std::make_shared<MemoryPool>(8 * kMiB);
  auto const memory = pool->allocate(4 * kMiB), other = pool->allocate(4 * kMiB);
  auto const all = std::span<std::byte const>(memory.get(), 4 * kMiB);
  auto const block = pool->find(all);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(pool->find(all.subspan(kMiB, 5)), block);
  EXPECT_EQ(pool->find(all.last(1)), block);
  EXPECT_NE(pool->find({other.get(), 1}), block);
  std::byte outside{};
  EXPECT_EQ(pool->find({&outside, 1}), nullptr);
  EXPECT_EQ(pool->find({memory.get(), block->bytes().size() + 1}), nullptr) << "it goes beyond the block";
}

TEST(MemoryPoolTest, WhatIsFreeBeyondTheLimitIsLetGoOfButStaysMappedForWhoHoldsIt) {
  auto const pool = std::make_shared<MemoryPool>(4 * kMiB);
  auto memory = pool->allocate(4 * kMiB), other = pool->allocate(4 * kMiB);
  auto const block = pool->find({memory.get(), 1});
  memory.reset();
  EXPECT_EQ(pool->find(block->bytes()), block) << "free, but within the limit";
  other.reset();
  EXPECT_EQ(pool->find(block->bytes()), nullptr);
  block->bytes().front() = std::byte{1};
}

TEST(MemoryPoolTest, ThreadsGetMemoryOfTheirOwn) {
  auto const pool = std::make_shared<MemoryPool>(kMiB);
  auto const work = [&](std::byte mine) {
    for (int round = 0; round < 2000; ++round) {
      auto const memory = pool->allocate(64);
      memory.get()[0] = mine;
      std::this_thread::yield();
      EXPECT_EQ(memory.get()[0], mine);
    }
  };
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 4; ++thread) threads.emplace_back(work, static_cast<std::byte>(thread));
}

}  // namespace
}  // namespace headway::comm
