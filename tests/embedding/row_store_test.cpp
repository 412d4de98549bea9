// SPDX-License-Identifier: Apache-2.0

// Row store of the CPU: rows stay in place, are reused, and take memory only when they are used.
//
// The store maps chunks of memory and hands out blocks of 64 rows, each to one RowAllocator. A row has
// metadata: lookup count, step, scalar state. reserve(rows, allocators) maps memory for that many rows in all.

#include "cpu/rows/row_store.hpp"

#include "headway/base/status.hpp"

#include <gtest/gtest.h>

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace headway::embedding {
namespace {

constexpr std::size_t kRowBytes = 128;

/// Fills a row and its metadata with values that depend on its id.
void sign(RowStore const& store, RowId id) {
  std::memset(store.row(id), static_cast<int>(static_cast<std::uint32_t>(id) * 37 % 251), kRowBytes);
  store.metadata(id) = {.count = static_cast<std::uint32_t>(id), .step = 7, .state = 0.5F};
}

/// Checks that the row still has the values of sign().
void expect_signed(RowStore const& store, RowId id) {
  auto const expected = static_cast<std::byte>(static_cast<std::uint32_t>(id) * 37 % 251);
  EXPECT_TRUE(std::all_of(store.row(id), store.row(id) + kRowBytes, [&](std::byte each) { return each == expected; }));
  EXPECT_EQ(store.metadata(id).count, static_cast<std::uint32_t>(id));
}

TEST(RowStore, RowsAreApartAndStayWhereTheyAre) {
  RowStore store(kRowBytes);
  RowAllocator allocator(store);
  std::set<RowId> rows;
  std::byte const* first = nullptr;
  for (std::size_t round = 0; store.num_chunks() < 4; ++round) {
    store.reserve(100'000, 1);
    for (int i = 0; i < 100'000; ++i) {
      auto const id = allocator.allocate();
      ASSERT_NE(id, RowId::kNone);
      ASSERT_TRUE(rows.insert(id).second);
      sign(store, id);
    }
    if (first == nullptr) first = store.row(*rows.begin());
  }
  EXPECT_EQ(store.row(*rows.begin()), first);
  for (RowId const id : rows) expect_signed(store, id);
  EXPECT_LE(store.num_rows(), rows.size() + RowStore::kBlockRows);
}

TEST(RowStore, FreedRowsAreUsedAgainFirst) {
  RowStore store(kRowBytes);
  RowAllocator allocator(store);
  store.reserve(1'000, 1);
  std::vector<RowId> rows;
  for (int i = 0; i < 1'000; ++i) rows.push_back(allocator.allocate());
  std::ranges::shuffle(rows, std::mt19937(3));
  std::set<RowId> freed(rows.begin(), rows.begin() + 300);
  for (RowId const id : freed) allocator.free(id);
  auto const before = store.num_rows();
  for (int i = 0; i < 300; ++i) freed.erase(allocator.allocate());
  // The last block may still have rows that were never used; they can be taken in place of freed ones.
  EXPECT_LE(freed.size(), RowStore::kBlockRows);
  EXPECT_EQ(store.num_rows(), before);
}

/// Resident bytes of the store's first chunk.
std::size_t resident_bytes(RowStore const& store) {
  std::size_t const page = HugeMemory::kSmallPageBytes;
  std::size_t const size = store.rows_per_chunk() * (store.row_bytes() + sizeof(RowMetadata));
  std::vector<unsigned char> states((size + page - 1) / page);
  EXPECT_EQ(mincore(store.row(RowId{0}), size, states.data()), 0);
  return page *
         static_cast<std::size_t>(std::ranges::count_if(states, [](unsigned char each) { return (each & 1) != 0; }));
}

/// Allocates rows and writes to them.
void take_and_sign(RowStore& store, std::size_t num_rows) {
  RowAllocator allocator(store);
  store.reserve(num_rows, 1);
  for (std::size_t i = 0; i < num_rows; ++i) sign(store, allocator.allocate());
}

TEST(RowStore, FewRowsTakeLittleMemory) {
  RowStore store(kRowBytes);
  take_and_sign(store, 64);
  EXPECT_LE(resident_bytes(store), 64U << 10);
  EXPECT_LE(store.num_bytes(), 64U << 10);
}

TEST(RowStore, BytesAreNoFewerThanThoseInMemory) {
  for (std::size_t const num_rows : {1U, 64U, 5'000U, 17'000U, 60'000U, 200'000U}) {
    RowStore store(kRowBytes);
    take_and_sign(store, num_rows);
    EXPECT_GE(store.num_bytes(), resident_bytes(store)) << num_rows;
    EXPECT_LE(store.num_bytes(), num_rows * (kRowBytes + sizeof(RowMetadata) + 1) + 3 * HugeMemory::kPageBytes)
        << num_rows;
  }
}

TEST(RowStore, SmallPagesKeepTheirRowsWhenHugeOnesFollow) {
  RowStore store(kRowBytes);
  take_and_sign(store, 1'000);
  take_and_sign(store, 100'000);
  for (std::uint32_t id = 1; id <= 1'000; ++id) expect_signed(store, RowId{id});
}

TEST(RowStore, NoMoreRowsThanWereReservedAndAChunkAhead) {
  RowStore store(std::size_t{1} << 20);  // A chunk has one block, the minimum.
  RowAllocator allocator(store);
  EXPECT_EQ(allocator.allocate(), RowId::kNone);
  store.reserve(1, 1);
  // Two blocks, as reserve() allows for partly used ones, and one chunk ahead.
  EXPECT_EQ(store.num_chunks(), 3U);
  std::size_t count = 0;
  while (allocator.allocate() != RowId::kNone) ++count;
  EXPECT_EQ(count, 3 * RowStore::kBlockRows - 1);  // Row 0 is kNone.
  EXPECT_THROW(store.reserve(RowStore::kNumIds, 1), std::length_error);
  store.clear();
  EXPECT_EQ(RowAllocator(store).allocate(), RowId::kNone);
  EXPECT_THROW(RowStore(100), base::UsageError);  // Not a multiple of 16 bytes.
}

TEST(RowStore, ReservedRowsSufficeForAllAllocators) {
  constexpr std::size_t kNumThreads = 8, kNumRows = 10'001;
  RowStore store(kRowBytes);
  std::vector<std::vector<RowId>> rows(kNumThreads);
  store.reserve(kNumRows * kNumThreads, kNumThreads);
  {
    std::vector<std::jthread> threads;
    for (auto& own : rows) {
      threads.emplace_back([&store, &own] {
        RowAllocator allocator(store);
        for (std::size_t i = 0; i < kNumRows; ++i) {
          own.push_back(allocator.allocate());
          if (own.back() != RowId::kNone) sign(store, own.back());
        }
      });
    }
  }
  std::set<RowId> all;
  for (auto const& own : rows) {
    for (RowId const id : own) {
      ASSERT_NE(id, RowId::kNone);
      ASSERT_TRUE(all.insert(id).second);
      expect_signed(store, id);
    }
  }
}

TEST(RowStore, PartsOfBlocksAreReservedForEachAllocator) {
  RowStore store(std::size_t{1} << 20);  // A chunk is one block, so that reserve() maps little more than it must.
  std::vector<RowAllocator> allocators(5, RowAllocator(store));
  for (int round = 0; round < 40; ++round) {
    store.reserve(5, allocators.size());
    for (auto& each : allocators) ASSERT_NE(each.allocate(), RowId::kNone) << round;
  }
}

}  // namespace
}  // namespace headway::embedding
