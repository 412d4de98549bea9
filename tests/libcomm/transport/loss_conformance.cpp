// SPDX-License-Identifier: Apache-2.0

// Conformance of transports: what happens when a peer goes away.
//
// Each test runs with every transport. The contract: a loss is reported once, by rank and with a reason; what the
// peer had flushed before arrives before the report; the other ranks go on; and nothing remains on the host.

#include "endpoint_conformance.hpp"
#include "headway/comm/endpoint.hpp"
#include "host_traces.hpp"
#include "test_bytes.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace headway::comm {
namespace {

/// Puts a payload in both directions. It lies kHeaderBytes after the offset of its put in the peer's receive buffer.
bool exchange_works(EndpointGroup& ranks, int left, int right, std::uint16_t operation) {
  auto const payload = test_bytes(10000, operation);
  Tag const tag{.operation = operation};
  ranks.put(left, {.peer = right}, {}, payload, tag);
  ranks.put(right, {.peer = left}, {}, payload, tag);
  return ranks.poll_until([&] { return ranks.heard(left).has(right, tag) && ranks.heard(right).has(left, tag); }) &&
         same_bytes(ranks[left].receive_buffer().subspan(kHeaderBytes, payload.size()), payload) &&
         same_bytes(ranks[right].receive_buffer().subspan(kHeaderBytes, payload.size()), payload);
}

}  // namespace

TEST_P(LossConformance, ALostPeerIsReportedOnceByNameAndTheOthersGoOn) {
  auto ranks = connect(4);
  ASSERT_TRUE(ranks.settle());
  ranks.drop(2);
  ASSERT_TRUE(ranks.poll_until([&] {
    return ranks.heard(0).losses_of(2) > 0 && ranks.heard(1).losses_of(2) > 0 && ranks.heard(3).losses_of(2) > 0;
  }));
  EXPECT_TRUE(ranks.settle());
  EXPECT_TRUE(exchange_works(ranks, 0, 1, 1));
  EXPECT_TRUE(exchange_works(ranks, 1, 3, 2));
  EXPECT_TRUE(exchange_works(ranks, 3, 0, 3));
  for (int const rank : {0, 1, 3}) {
    ASSERT_EQ(ranks.heard(rank).losses().size(), 1u) << "rank " << rank;
    EXPECT_EQ(ranks.heard(rank).losses()[0].first, 2);
    EXPECT_FALSE(ranks.heard(rank).losses()[0].second.empty());
  }
}

TEST_P(LossConformance, PeersMayGoOneAfterTheOther) {
  auto ranks = connect(4);
  for (int const gone : {3, 1, 0}) {
    ranks.drop(gone);
    ASSERT_TRUE(ranks.poll_until([&] { return ranks.heard(2).losses_of(gone) == 1; })) << "rank " << gone;
  }
  EXPECT_TRUE(ranks.settle());
  EXPECT_EQ(ranks.heard(2).losses().size(), 3u);
}

TEST_P(LossConformance, WhatWasFlushedBeforeAPeerLeftArrivesBeforeItsLoss) {
  auto ranks = connect(2, std::size_t{2} << 20);
  auto const payload = test_bytes(30000, 1);
  for (std::uint16_t operation = 0; operation < 10; ++operation) {
    ASSERT_TRUE(ranks[0].put({.peer = 1, .offset = operation * 40000u}, {}, payload, Tag{.operation = operation}).ok());
    // Unread data at the leaving rank must not harm the data that it sent.
    ASSERT_TRUE(ranks[1].put({.peer = 0, .offset = operation * 40000u}, {}, payload, Tag{.operation = operation}).ok());
  }
  ranks[0].submit();
  ranks[1].submit();
  RecordingSink& heard_by_0 = ranks.heard(0);
  for (Deadline const deadline = Clock::now() + kTestPatience; ranks[0].flushed(1) < 10 && Clock::now() < deadline;) {
    ranks[0].poll(heard_by_0);
  }
  ASSERT_EQ(ranks[0].flushed(1), 10u);
  ranks.drop(0);
  ASSERT_TRUE(ranks.poll_until([&] { return ranks.heard(1).losses_of(0) == 1; }));
  EXPECT_EQ(ranks.heard(1).tags_from(0), 10u);
  for (std::size_t put = 0; put < 10; ++put) {
    EXPECT_TRUE(same_bytes(ranks[1].receive_buffer().subspan(put * 40000 + kHeaderBytes, payload.size()), payload))
        << put;
  }
}

TEST_P(LossConformance, PutsToALostPeerDoNoHarmAndItsSourcesMayBeFreed) {
  auto ranks = connect(3, std::size_t{4} << 20);
  {
    auto const payload = test_bytes(std::size_t{3} << 20, 2);
    ASSERT_TRUE(ranks[0].put({.peer = 2}, {}, payload, Tag{}).ok());
    ranks[0].submit();
    ranks.drop(2);
    ASSERT_TRUE(ranks.poll_until([&] { return ranks.heard(0).losses_of(2) == 1; }));
  }
  auto const payload = test_bytes(1000, 3);
  for (std::uint16_t operation = 1; operation < 500; ++operation) {
    (void)ranks[0].put({.peer = 2}, {}, payload, Tag{.operation = operation});  // Any harmless outcome is right.
    ranks[0].submit();
    ranks[0].send_oob(2, "anyone there?");
    ranks.poll_all();
  }
  EXPECT_TRUE(exchange_works(ranks, 0, 1, 1000));
  EXPECT_EQ(ranks.heard(0).losses_of(2), 1u);
}

TEST_P(LossConformance, NothingThatAnEndpointUsesHasANameInTheFileSystem) {
  auto ranks = connect(3);
  EXPECT_TRUE(exchange_works(ranks, 0, 1, 1));
  EXPECT_EQ(named_temporary_files_of(), std::vector<std::string>());
}

TEST_P(LossConformance, ManyGroupsComeAndGoWithoutATrace) {
  { auto first_use = connect(3); }
  std::size_t const descriptors_before = open_descriptors();
  for (std::uint16_t group = 0; group < 30; ++group) {
    auto ranks = connect(3);
    ASSERT_TRUE(exchange_works(ranks, 0, 2, group));
  }
  EXPECT_EQ(open_descriptors(), descriptors_before);
}

}  // namespace headway::comm
