// SPDX-License-Identifier: Apache-2.0

// Conformance of transports: puts.
//
// The central test fills the whole receive buffer with a pattern, puts once, and compares every byte when the tag
// arrives: header and payload in place, nothing else changed. The others vary one thing each: no payload, no header,
// the last byte of the buffer, a source that changes after the flush, no credit, both directions at once, wrong
// arguments.
//
// The header lies at the offset of the put, and the payload kHeaderBytes after it. A tag is (channel, operation,
// fragment). A put is flushed once its source may change.

#include "endpoint_conformance.hpp"
#include "headway/comm/endpoint.hpp"
#include "test_bytes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace headway::comm {

TEST_P(PutConformance, EachEndpointKnowsItsRankTheSizeAndItsTransports) {
  auto ranks = connect(3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ranks[rank].rank(), rank);
    EXPECT_EQ(ranks[rank].size(), 3);
    for (int peer = 0; peer < 3; ++peer) {
      if (peer != rank) {
        EXPECT_FALSE(ranks[rank].traits(peer).transport.empty());
      }
    }
  }
}

TEST_P(PutConformance, TheReceiveBufferIsAlignedZeroAndAsLargeAsAskedFor) {
  auto ranks = connect(2, 300 * 1024);
  for (int rank = 0; rank < 2; ++rank) {
    auto const receive_buffer = ranks[rank].receive_buffer();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(receive_buffer.data()) % 64, 0u);
    EXPECT_GE(receive_buffer.size(), 300u * 1024u);
    EXPECT_TRUE(all_zero(receive_buffer));
  }
}

TEST_P(PutConformance, AGroupOfOneRankIsIdle) {
  auto ranks = connect(1);
  EXPECT_EQ(ranks[0].size(), 1);
  EXPECT_TRUE(ranks.settle());
  ranks[0].arm();
  ranks.poll(0);
  ranks[0].sleep(Clock::now() + std::chrono::milliseconds(5));
  ranks[0].disarm();
  EXPECT_TRUE(ranks.heard(0).losses().empty());
}

TEST_P(PutConformance, BytesAreInPlaceAndNowhereElseWhenTheirTagArrives) {
  constexpr std::size_t kReceiveBufferBytes = std::size_t{4} << 20;
  auto ranks = connect(2, kReceiveBufferBytes);
  auto const receive_buffer = ranks[1].receive_buffer();
  std::uint16_t operation = 0;
  for (std::size_t const offset : {0u, 64u, 128u, 4096u, 4160u, 70016u}) {
    for (std::size_t const size : {1u, 7u, 8u, 63u, 64u, 65u, 4095u, 4097u, 65536u, 65537u, 1000003u, 3145733u}) {
      std::size_t const header_size = (size * 7 + offset / 64) % (kMaxHeaderBytes + 1);
      auto const header = test_bytes(header_size, operation + 100000);
      auto const payload = test_bytes(size, operation);
      Tag const tag{.channel = 3, .operation = operation, .fragment = static_cast<std::uint8_t>(operation)};

      ranks.put(0, {.peer = 1, .offset = offset}, header, payload, tag);
      ASSERT_TRUE(ranks.poll_until([&] { return ranks.heard(1).has(0, tag); })) << size << " bytes at " << offset;

      auto const placed = receive_buffer.subspan(offset + kHeaderBytes, size);
      EXPECT_TRUE(same_bytes(receive_buffer.subspan(offset, header_size), header)) << size << " bytes at " << offset;
      EXPECT_TRUE(same_bytes(placed, payload)) << size << " bytes at " << offset;
      EXPECT_TRUE(all_zero(receive_buffer.first(offset))) << size << " bytes at " << offset;
      EXPECT_TRUE(all_zero(receive_buffer.subspan(offset + kHeaderBytes + size))) << size << " bytes at " << offset;
      std::fill_n(receive_buffer.begin() + static_cast<std::ptrdiff_t>(offset), kHeaderBytes + size, std::byte{0});
      ++operation;
    }
  }
  EXPECT_EQ(ranks.heard(1).tags_from(0), operation);
}

TEST_P(PutConformance, APutThatWasAnnouncedIsLikeAnyOther) {
  auto ranks = connect(2);
  auto const header = test_bytes(16, 18);
  for (std::uint16_t operation = 0; operation < 100; ++operation) {
    auto const payload = test_bytes(operation * 7u, operation);
    Destination const destination{.peer = 1, .offset = operation * 1024u};
    Tag const tag{.operation = operation};
    ranks[0].prepare(destination, header.size(), payload.size());
    ranks.put(0, destination, header, payload, tag);
    ASSERT_TRUE(ranks.poll_until([&] { return ranks.heard(1).has(0, tag); }));
    EXPECT_TRUE(same_bytes(ranks[1].receive_buffer().subspan(destination.offset, header.size()), header));
    EXPECT_TRUE(
        same_bytes(ranks[1].receive_buffer().subspan(destination.offset + kHeaderBytes, payload.size()), payload));
  }
}

TEST_P(PutConformance, APutFillsTheReceiveBufferToItsLastByte) {
  auto ranks = connect(2, 64 * 1024);
  auto const receive_buffer = ranks[1].receive_buffer();
  std::uint64_t const offset = (receive_buffer.size() - 300) / 64 * 64;
  auto const payload = test_bytes(receive_buffer.size() - offset - kHeaderBytes, 1);
  ranks.put(0, {.peer = 1, .offset = offset}, {}, payload, Tag{});
  ASSERT_TRUE(ranks.poll_until([&] { return ranks.heard(1).has(0, Tag{}); }));
  EXPECT_TRUE(same_bytes(receive_buffer.last(payload.size()), payload));
}

TEST_P(PutConformance, AnEmptyPutStillMakesItsTagVisible) {
  auto ranks = connect(2);
  Tag const tag{.channel = 1, .operation = 7, .fragment = 0};
  ranks.put(0, {.peer = 1}, {}, {}, tag);
  ASSERT_TRUE(ranks.poll_until([&] { return ranks.heard(1).has(0, tag); }));
  EXPECT_TRUE(all_zero(ranks[1].receive_buffer()));
}

TEST_P(PutConformance, AHeaderWithoutAPayloadIsInPlace) {
  auto ranks = connect(2);
  auto const header = test_bytes(kMaxHeaderBytes, 5);
  ranks.put(0, {.peer = 1, .offset = 128}, header, {}, Tag{});
  ASSERT_TRUE(ranks.poll_until([&] { return ranks.heard(1).has(0, Tag{}); }));
  EXPECT_TRUE(same_bytes(ranks[1].receive_buffer().subspan(128, header.size()), header));
  EXPECT_TRUE(all_zero(ranks[1].receive_buffer().subspan(128 + kHeaderBytes)));
}

TEST_P(PutConformance, APutWithoutAHeaderLeavesTheOneThatIsThere) {
  auto ranks = connect(2);
  auto const header = test_bytes(kMaxHeaderBytes, 1);
  std::uint16_t operation = 0;
  for (std::size_t const size : {1u, 40u, 64u, 5000u}) {
    auto const payload = test_bytes(size, 2);
    ranks.put(0, {.peer = 1}, header, {}, Tag{.operation = operation});
    ranks.put(0, {.peer = 1}, {}, payload, Tag{.operation = static_cast<std::uint16_t>(operation + 1)});
    operation += 2;
    ASSERT_TRUE(ranks.poll_until([&] { return ranks.heard(1).tags_from(0) == operation; }));
    EXPECT_TRUE(same_bytes(ranks[1].receive_buffer().first(header.size()), header)) << size;
    EXPECT_TRUE(same_bytes(ranks[1].receive_buffer().subspan(kHeaderBytes, size), payload)) << size;
  }
}

TEST_P(PutConformance, EveryTagArrivesAsItWasPut) {
  auto ranks = connect(2);
  std::vector<Tag> const tags = {{0, 0, 0},   {255, 65535, 255}, {0, 65535, 0},
                                 {255, 0, 0}, {0, 0, 255},       {18, 0x3456, 120}};
  for (Tag const tag : tags) ranks.put(1, {.peer = 0}, {}, {}, tag);
  for (Tag const tag : tags) {
    EXPECT_TRUE(ranks.poll_until([&] { return ranks.heard(0).has(1, tag); })) << tag.packed();
  }
  EXPECT_EQ(ranks.heard(0).tags_from(1), tags.size());
}

TEST_P(PutConformance, TheHeaderMayChangeRightAfterThePut) {
  auto ranks = connect(2);
  auto header = test_bytes(48, 9);
  auto const original = header;
  auto const payload = test_bytes(200000, 10);
  ASSERT_TRUE(ranks[0].put({.peer = 1}, header, payload, Tag{}).ok());
  std::fill(header.begin(), header.end(), std::byte{0xff});
  ranks[0].submit();
  ASSERT_TRUE(ranks.poll_until([&] { return ranks.heard(1).has(0, Tag{}); }));
  EXPECT_TRUE(same_bytes(ranks[1].receive_buffer().first(48), original));
}

TEST_P(PutConformance, ASourceMayChangeOnceItsPutIsFlushed) {
  constexpr std::size_t kBytes = 3000001;
  auto ranks = connect(2, std::size_t{8} << 20);
  auto payload = test_bytes(kBytes, 11);
  auto const original = payload;
  ranks.put(0, {.peer = 1}, {}, payload, Tag{});
  std::uint64_t const count = ranks[0].put_count(1);
  ASSERT_TRUE(ranks.poll_until([&] { return ranks[0].flushed(1) >= count; }));
  std::fill(payload.begin(), payload.end(), std::byte{0xff});
  ASSERT_TRUE(ranks.poll_until([&] { return ranks.heard(1).has(0, Tag{}); }));
  EXPECT_TRUE(same_bytes(ranks[1].receive_buffer().subspan(kHeaderBytes, kBytes), original));
}

TEST_P(PutConformance, PutsAreCountedByPeerAndAllAreFlushedInTheEnd) {
  auto ranks = connect(3);
  auto const payload = test_bytes(5000, 12);
  std::uint64_t flushed_before = 0;
  for (std::uint16_t operation = 0; operation < 20; ++operation) {
    ranks.put(0, {.peer = 1}, {}, payload, Tag{.operation = operation});
    EXPECT_EQ(ranks[0].put_count(1), operation + 1u);
    EXPECT_EQ(ranks[0].put_count(2), 0u);
    EXPECT_GE(ranks[0].flushed(1), flushed_before);
    EXPECT_LE(ranks[0].flushed(1), ranks[0].put_count(1));
    flushed_before = ranks[0].flushed(1);
  }
  EXPECT_TRUE(ranks.poll_until([&] { return ranks[0].flushed(1) == 20; }));
  EXPECT_EQ(ranks[0].flushed(2), 0u);
  EXPECT_EQ(ranks[1].put_count(0), 0u);
}

TEST_P(PutConformance, ASmallPutArrivesThoughItsSenderOnlySubmits) {
  auto ranks = connect(2);
  auto const payload = test_bytes(1024, 13);
  ASSERT_TRUE(ranks[0].put({.peer = 1}, {}, payload, Tag{}).ok());
  ranks[0].submit();
  for (Deadline const deadline = Clock::now() + kTestPatience;
       !ranks.heard(1).has(0, Tag{}) && Clock::now() < deadline;) {
    ranks.poll(1);
  }
  ASSERT_TRUE(ranks.heard(1).has(0, Tag{}));
  EXPECT_TRUE(same_bytes(ranks[1].receive_buffer().subspan(kHeaderBytes, payload.size()), payload));
}

TEST_P(PutConformance, BytesArriveWithoutThePeerUnlessItSaysThatItMustPoll) {
  auto ranks = connect(2);
  if (ranks[1].receives_by_polling()) GTEST_SKIP() << "this transport lands by polling";
  auto const payload = test_bytes(30000, 14);
  ASSERT_TRUE(ranks[0].put({.peer = 1, .offset = 64}, {}, payload, Tag{}).ok());
  ranks[0].submit();
  EXPECT_TRUE(same_bytes(ranks[1].receive_buffer().subspan(64 + kHeaderBytes, payload.size()), payload));
}

TEST_P(PutConformance, PutsWithoutCreditAreRefusedWithNoEffectAndPassOnceThePeerPolls) {
  constexpr std::size_t kPuts = 20000;  // Enough to use up the credit of a transport that limits it.
  constexpr std::size_t kStride = 128;
  auto ranks = connect(2, kPuts * kStride);
  auto const payload_of = [](std::size_t put) { return test_bytes(32, put); };
  std::vector<std::vector<std::byte>> payloads;
  for (std::size_t put = 0; put < kPuts; ++put) payloads.push_back(payload_of(put));

  for (std::size_t put = 0; put < kPuts; ++put) {
    Tag const tag{.operation = static_cast<std::uint16_t>(put)};
    Deadline const deadline = Clock::now() + kTestPatience;
    for (bool accepted = false; !accepted;) {
      Status const status = ranks[0].put({.peer = 1, .offset = put * kStride}, {}, payloads[put], tag);
      accepted = status.ok();
      if (accepted) break;
      ASSERT_EQ(status.code(), StatusCode::kWouldBlock);
      ASSERT_EQ(ranks[0].put_count(1), put);
      ASSERT_LT(Clock::now(), deadline) << "no credit came back after " << put << " puts";
      ranks[0].submit();
      ranks.poll_all();
    }
  }
  ranks[0].submit();
  ASSERT_TRUE(ranks.poll_until([&] { return ranks.heard(1).tags_from(0) == kPuts; }));
  for (std::size_t put = 0; put < kPuts; ++put) {
    ASSERT_TRUE(same_bytes(ranks[1].receive_buffer().subspan(put * kStride + kHeaderBytes, 32), payloads[put])) << put;
  }
}

TEST_P(PutConformance, LargePutsInBothDirectionsAtOnceDoNotBlockEachOther) {
  constexpr std::size_t kBytes = std::size_t{2} << 20;
  constexpr std::size_t kPuts = 6;
  auto ranks = connect(2, kPuts * (kBytes + kHeaderBytes));
  std::vector<std::vector<std::byte>> payloads;
  for (std::size_t put = 0; put < 2 * kPuts; ++put) payloads.push_back(test_bytes(kBytes, put));
  for (std::size_t put = 0; put < kPuts; ++put) {
    for (int rank = 0; rank < 2; ++rank) {
      ranks.put(rank, {.peer = 1 - rank, .offset = put * (kBytes + kHeaderBytes)}, {},
                payloads[put * 2 + static_cast<std::size_t>(rank)], Tag{.operation = static_cast<std::uint16_t>(put)});
    }
  }
  ASSERT_TRUE(
      ranks.poll_until([&] { return ranks.heard(0).tags_from(1) == kPuts && ranks.heard(1).tags_from(0) == kPuts; }));
  for (std::size_t put = 0; put < kPuts; ++put) {
    for (int rank = 0; rank < 2; ++rank) {
      auto const placed =
          ranks[1 - rank].receive_buffer().subspan(put * (kBytes + kHeaderBytes) + kHeaderBytes, kBytes);
      EXPECT_TRUE(same_bytes(placed, payloads[put * 2 + static_cast<std::size_t>(rank)])) << put << " of " << rank;
    }
  }
}

TEST_P(PutConformance, PollReturnsFalseOnceNothingMoves) {
  auto ranks = connect(2);
  ranks.put(0, {.peer = 1}, {}, test_bytes(100, 15), Tag{});
  ASSERT_TRUE(ranks.poll_until([&] { return ranks.heard(1).has(0, Tag{}); }));
  EXPECT_TRUE(ranks.settle());
}

TEST_P(PutConformance, APutToNoPeerIsAUsageErrorWithNoEffect) {
  auto ranks = connect(3);
  auto const payload = test_bytes(8, 16);
  for (int const peer : {-1, 0, 3, 1000, std::numeric_limits<int>::max(), std::numeric_limits<int>::min()}) {
    EXPECT_THROW((void)ranks[0].put({.peer = peer}, {}, payload, Tag{}), UsageError) << "peer " << peer;
  }
  EXPECT_EQ(ranks[0].put_count(1) + ranks[0].put_count(2), 0u);
}

TEST_P(PutConformance, APutBeyondTheReceiveBufferIsAUsageErrorWithNoEffect) {
  auto ranks = connect(2, 64 * 1024);
  auto const payload = test_bytes(100, 17);
  std::uint64_t const end = ranks[1].receive_buffer().size();
  std::uint64_t const last_offset = (end - kHeaderBytes - payload.size()) / 64 * 64;
  for (std::uint64_t const offset : {last_offset + 64, last_offset + 128, (end / 64 + 1) * 64, (end / 64) * 1024,
                                     std::numeric_limits<std::uint64_t>::max() / 64 * 64 - 64,
                                     std::numeric_limits<std::uint64_t>::max() / 64 * 64}) {
    EXPECT_THROW((void)ranks[0].put({.peer = 1, .offset = offset}, {}, payload, Tag{}), UsageError) << offset;
  }
  EXPECT_EQ(ranks[0].put_count(1), 0u);
  ranks[0].submit();
  EXPECT_TRUE(ranks.settle());
  EXPECT_TRUE(all_zero(ranks[1].receive_buffer()));
  ranks.put(0, {.peer = 1, .offset = last_offset}, {}, payload, Tag{});
  EXPECT_TRUE(ranks.poll_until([&] { return ranks.heard(1).has(0, Tag{}); }));
}

}  // namespace headway::comm
