// SPDX-License-Identifier: Apache-2.0

// Conformance of transports: windows, get() and claim().
//
// The promise that matters most is the negative one. After close_window() or retract() returns, the memory is the
// caller's again, whatever peers still try. The tests keep putting from another thread while the window closes, and
// compare every byte afterwards. Transports without a capability skip its tests (PeerTraits).
//
// A window is memory that its owner opens to one peer for puts. claim() is an atomic maximum on a word of a receive
// buffer: it succeeds only if it raises the word, so of several callers with one value only the first succeeds.

#include "endpoint_conformance.hpp"
#include "headway/comm/endpoint.hpp"
#include "test_bytes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

namespace headway::comm {
namespace {

bool can_put_to_window(EndpointGroup& ranks) {
  for (int rank = 0; rank < ranks.size(); ++rank) {
    for (int peer = 0; peer < ranks.size(); ++peer) {
      if (peer != rank && !ranks[rank].traits(peer).can_put_to_window) return false;
    }
  }
  return true;
}

/// Opens `memory` of `owner` to `peer`. A put tells the peer so, on a channel that the tests do not use. When this
/// returns, the peer may put there.
void open_window(EndpointGroup& ranks, int owner, int peer, WindowId window, std::span<std::byte> memory) {
  auto const heard_before = ranks.heard(peer).tags_from(owner);
  ASSERT_TRUE(ranks[owner].open_window(peer, window, memory));
  ranks.put(owner, {.peer = peer}, {}, {}, Tag{.channel = 200, .operation = static_cast<std::uint16_t>(heard_before)});
  ASSERT_TRUE(ranks.poll_until([&] { return ranks.heard(peer).tags_from(owner) > heard_before; }));
  ASSERT_TRUE(ranks.settle());
}

}  // namespace

TEST_P(MemoryConformance, APutIntoAWindowWritesOnlyItsPayload) {
  auto ranks = connect(2);
  if (!can_put_to_window(ranks)) GTEST_SKIP() << "this transport does not put into windows";
  std::vector<std::byte> memory(2000000);
  open_window(ranks, 1, 0, 5, memory);
  std::uint16_t operation = 0;
  for (std::size_t const size : {1u, 64u, 4097u, 1500001u}) {
    for (std::size_t const offset : {0u, 3u, 4099u}) {
      auto const payload = test_bytes(size, operation);
      Tag const tag{.operation = operation++};
      ranks.put(0, {.peer = 1, .window = 5, .offset = offset}, {}, payload, tag);
      ASSERT_TRUE(ranks.poll_until([&] { return ranks.heard(1).has(0, tag); })) << size << " bytes at " << offset;
      auto const all = std::span(memory);
      EXPECT_TRUE(same_bytes(all.subspan(offset, size), payload)) << size << " bytes at " << offset;
      EXPECT_TRUE(all_zero(all.first(offset)) && all_zero(all.subspan(offset + size))) << size << " at " << offset;
      std::fill(memory.begin(), memory.end(), std::byte{0});
    }
  }
  ranks[1].close_window(0, 5);
  EXPECT_TRUE(all_zero(ranks[1].receive_buffer()));
}

TEST_P(MemoryConformance, WindowsAreOpenToOnePeerEach) {
  auto ranks = connect(3);
  if (!can_put_to_window(ranks)) GTEST_SKIP() << "this transport does not put into windows";
  std::vector<std::byte> memory_for_1(5000), memory_for_2(5000);
  open_window(ranks, 0, 1, 9, memory_for_1);
  open_window(ranks, 0, 2, 9, memory_for_2);
  auto const payload_1 = test_bytes(5000, 1), payload_2 = test_bytes(5000, 2);
  ranks.put(1, {.peer = 0, .window = 9}, {}, payload_1, Tag{});
  ranks.put(2, {.peer = 0, .window = 9}, {}, payload_2, Tag{});
  ASSERT_TRUE(ranks.poll_until([&] { return ranks.heard(0).has(1, Tag{}) && ranks.heard(0).has(2, Tag{}); }));
  EXPECT_TRUE(same_bytes(memory_for_1, payload_1));
  EXPECT_TRUE(same_bytes(memory_for_2, payload_2));
  ranks[0].close_window(1, 9);
  ranks[0].close_window(2, 9);
}

TEST_P(MemoryConformance, NothingIsWrittenAfterWithdrawThoughPutsAreUnderWay) {
  auto ranks = connect(2);
  if (!can_put_to_window(ranks)) GTEST_SKIP() << "this transport does not put into windows";
  std::vector<std::byte> memory(4000000);
  auto const payload = test_bytes(memory.size(), 3);
  open_window(ranks, 1, 0, 1, memory);
  ASSERT_TRUE(ranks[0].put({.peer = 1, .window = 1}, {}, payload, Tag{}).ok());
  ranks[0].submit();
  ranks.poll_all();  // A part of the payload may have landed.

  ranks[1].close_window(0, 1);
  std::fill(memory.begin(), memory.end(), std::byte{0});
  EXPECT_TRUE(ranks.settle());
  EXPECT_TRUE(all_zero(memory));
}

TEST_P(MemoryConformance, NothingIsWrittenAfterWithdrawWhileThePeersThreadKeepsPutting) {
  auto ranks = connect(2);
  if (!can_put_to_window(ranks)) GTEST_SKIP() << "this transport does not put into windows";
  std::vector<std::byte> memory(100000);
  auto const payload = test_bytes(memory.size(), 4);
  open_window(ranks, 1, 0, 1, memory);

  std::atomic<bool> stop{false};
  std::jthread sender([&] {
    for (std::uint16_t operation = 0; !stop; ++operation) {
      try {
        (void)ranks[0].put({.peer = 1, .window = 1}, {}, payload, Tag{.operation = operation});
      } catch (UsageError const&) {  // The transport may already know that the window is gone.
      }
      ranks[0].submit();
      ranks.poll(0);
    }
  });
  EXPECT_TRUE([&] {
    for (Deadline const deadline = Clock::now() + kTestPatience; ranks.heard(1).tags_from(0) < 20;) {
      if (Clock::now() > deadline) return false;
      ranks.poll(1);
    }
    return true;
  }());
  ranks[1].close_window(0, 1);
  std::fill(memory.begin(), memory.end(), std::byte{0});
  for (Deadline const deadline = Clock::now() + std::chrono::milliseconds(50); Clock::now() < deadline;) ranks.poll(1);
  EXPECT_TRUE(all_zero(memory));
  stop = true;
}

TEST_P(MemoryConformance, AWindowNumberMayBeUsedAgainAfterItIsClosed) {
  auto ranks = connect(2);
  if (!can_put_to_window(ranks)) GTEST_SKIP() << "this transport does not put into windows";
  for (std::uint16_t round = 0; round < 5; ++round) {
    std::vector<std::byte> memory(1000);
    auto const payload = test_bytes(memory.size(), round);
    open_window(ranks, 1, 0, 2, memory);
    ranks.put(0, {.peer = 1, .window = 2}, {}, payload, Tag{.operation = round});
    ASSERT_TRUE(ranks.poll_until([&] { return ranks.heard(1).has(0, Tag{.operation = round}); }));
    ranks[1].close_window(0, 2);
    EXPECT_TRUE(same_bytes(memory, payload));
  }
}

TEST_P(MemoryConformance, NoPayloadIsReadAfterRetract) {
  auto ranks = connect(2, std::size_t{8} << 20);
  auto payload = test_bytes(3000000, 7);
  ASSERT_TRUE(ranks[0].put({.peer = 1}, {}, payload, Tag{}).ok());
  ranks[0].submit();
  ranks[0].retract();
  std::fill(payload.begin(), payload.end(), std::byte{0xee});
  std::vector<std::byte> const late(1000, std::byte{0xee});  // test_bytes() never holds so many equal bytes in a row.
  for (Deadline const end = Clock::now() + std::chrono::milliseconds(200); Clock::now() < end;) ranks.poll_all();
  auto const landed = ranks[1].receive_buffer();
  EXPECT_EQ(std::search(landed.begin(), landed.end(), late.begin(), late.end()), landed.end());
}

TEST_P(MemoryConformance, GetReadsThePeersMemory) {
  auto ranks = connect(2);
  if (!ranks[0].traits(1).can_get) GTEST_SKIP() << "this transport or host does not read a peer's memory";
  auto const source = test_bytes(3000001, 5);
  for (std::size_t const size : {0u, 1u, 63u, 4097u, 3000000u}) {
    for (std::size_t const offset : {0u, 1u}) {
      std::vector<std::byte> local(size + 1, std::byte{0x5a});
      auto const address = reinterpret_cast<std::uint64_t>(source.data() + offset);
      Status const status = ranks[0].get(1, address, std::span(local).first(size));
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_TRUE(same_bytes(std::span(local).first(size), std::span(source).subspan(offset, size))) << size;
      EXPECT_EQ(local.back(), std::byte{0x5a});
    }
  }
}

TEST_P(MemoryConformance, NoGetSucceedsAfterThePeerRetracted) {
  auto ranks = connect(3);
  if (!ranks[0].traits(1).can_get) GTEST_SKIP() << "this transport or host does not read a peer's memory";
  auto const source = test_bytes(1000, 6);
  std::vector<std::byte> local(source.size());
  auto const address = reinterpret_cast<std::uint64_t>(source.data());
  EXPECT_TRUE(ranks[0].get(1, address, local).ok());
  ranks[1].retract();
  Status const status = ranks[0].get(1, address, local);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("rank 1"), std::string_view::npos) << status.message();
  if (ranks[1].traits(0).can_get) {
    EXPECT_TRUE(ranks[1].get(0, address, local).ok()) << "rank 0 did not retract";
  }
}

TEST_P(MemoryConformance, AValueOfAWordIsClaimedByOneRank) {
  auto ranks = connect(2);
  if (!ranks[0].traits(1).can_get) GTEST_SKIP() << "this transport or host does not read a peer's memory";
  EXPECT_TRUE(ranks[0].claim(1, 64, 1));
  EXPECT_FALSE(ranks[1].claim(1, 64, 1)) << "rank 0 was first";
  EXPECT_TRUE(ranks[1].claim(1, 64, 3));
  EXPECT_FALSE(ranks[0].claim(1, 64, 3));
  EXPECT_FALSE(ranks[0].claim(1, 64, 2)) << "an older value";
  EXPECT_TRUE(ranks[0].claim(1, 72, 1)) << "another word";
  EXPECT_TRUE(ranks[1].claim(0, 64, 1)) << "the same place at another rank";
  EXPECT_THROW((void)ranks[0].claim(1, ranks[1].receive_buffer().size(), 1), UsageError);

  std::array<int, 2> num_won{};
  auto const claim_all = [&](int rank) {
    for (std::uint64_t value = 1; value <= 20000; ++value) {
      num_won[static_cast<std::size_t>(rank)] += ranks[rank].claim(1, 128, value) ? 1 : 0;
    }
  };
  {
    std::jthread const other([&] { claim_all(0); });
    claim_all(1);
  }
  EXPECT_LE(num_won[0] + num_won[1], 20000) << "a value that is overtaken is nobody's";
  EXPECT_GT(num_won[0] + num_won[1], 0);
  EXPECT_FALSE(ranks[0].claim(1, 128, 20000));
}

}  // namespace headway::comm
