// SPDX-License-Identifier: Apache-2.0

// Leaving a group: deliver() waits until peers have taken what this rank has sent, leave() ends the group on this rank.
//
// The difficult case is two ranks that both leave while each still has a message for the other that nobody will
// receive. Neither may wait for the other for ever, and each must learn which message was not taken.

#include "exchange.hpp"
#include "headway/comm/group.hpp"
#include "ranks_as_threads.hpp"
#include "test_bytes.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

namespace headway::comm {
namespace {

using std::chrono::milliseconds;
constexpr DataType kType = 3;
constexpr std::size_t kLargeBytes = std::size_t{4} << 20;  ///< The receiver must take it; it does not fit a slot.

/// Messages that a leaving rank still has to deliver.
class LeaveTest : public GroupTest {};

TEST_P(LeaveTest, ARankThatDeliversLeavesOnceItsMessagesAreTaken) {
  std::atomic<bool> has_received = false;
  run_ranks(2, options(), [&](Group& group) {
    auto const message = test_bytes(kLargeBytes, 1);
    if (group.rank() == 0) {
      auto const operation = group.send(message, 1, 7, kType);
      EXPECT_TRUE(group.admin().deliver(milliseconds(20000)).ok());
      EXPECT_TRUE(operation->done());
      EXPECT_TRUE(has_received);
      return;
    }
    std::this_thread::sleep_for(milliseconds(50));
    has_received = true;
    GuardedBytes block(kLargeBytes);
    finish(group, group.receive(block.span(), 0, 7, kType));
    EXPECT_TRUE(same_bytes(block.span(), message));
  });
}

TEST_P(LeaveTest, AMessageOfARankThatHasLeftCanBeReceived) {
  std::atomic<bool> has_left = false;
  run_ranks(2, options(), [&](Group& group) {
    auto const message = test_bytes(64, 1);
    if (group.rank() == 0) {
      for (std::uint64_t match = 0; match < 10; ++match) static_cast<void>(group.send(message, 1, match, kType));
      ASSERT_TRUE(group.admin().deliver(milliseconds(20000)).ok());
      group.admin().leave("the test is over");
      has_left = true;
      return;
    }
    while (!has_left) std::this_thread::yield();
    std::this_thread::sleep_for(milliseconds(20));
    for (std::uint64_t match = 0; match < 10; ++match) {
      GuardedBytes block(64);
      finish(group, group.receive(block.span(), 0, match, kType));
      EXPECT_TRUE(same_bytes(block.span(), message));
    }
    EXPECT_TRUE(group.monitor().health().ok());
  });
}

TEST_P(LeaveTest, AMessageThatIsNotTakenInTimeIsNamed) {
  std::atomic<bool> has_given_up = false;
  run_ranks(2, options(), [&](Group& group) {
    auto const message = test_bytes(kLargeBytes, 1);
    if (group.rank() == 1) {
      while (!has_given_up) std::this_thread::yield();
      return;
    }
    static_cast<void>(group.send(message, 1, 7, kType));
    auto const status = group.admin().deliver(milliseconds(50));
    EXPECT_EQ(status.code(), StatusCode::kTimeout);
    EXPECT_NE(std::string(status.message()).find("send waits for rank 1 to take 4194304 bytes"), std::string::npos)
        << status.message();
    EXPECT_TRUE(group.monitor().health().ok());
    group.admin().leave("the test is over");
    has_given_up = true;
  });
}

TEST_P(LeaveTest, TwoRanksThatLeaveWithoutHavingReceivedDoNotWaitForEachOther) {
  run_ranks(2, options(), [&](Group& group) {
    auto const message = test_bytes(kLargeBytes, 1);
    static_cast<void>(group.send(message, 1 - group.rank(), 7, kType));
    auto const status = group.admin().deliver(milliseconds(25000));
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.message();
    EXPECT_NE(std::string(status.message()).find("rank " + std::to_string(1 - group.rank())), std::string::npos)
        << status.message();
    group.admin().leave("the test is over");  // Leave before the memory of the message is freed.
  });
}

TEST_P(LeaveTest, ARankThatHasLeftRefusesAllCallsAndItsPendingOperationsFail) {
  std::atomic<bool> has_left = false;
  run_ranks(2, options(), [&](Group& group) {
    if (group.rank() == 1) {
      while (!has_left) std::this_thread::yield();
      return;
    }
    std::vector<std::byte> block(64);
    auto const pending = group.receive(block, 1 - group.rank(), 7, kType);
    group.admin().leave("the test is over");
    EXPECT_TRUE(pending->done());
    EXPECT_EQ(pending->status().message(), "the test is over");
    EXPECT_TRUE(group.admin().deliver(milliseconds(1000)).ok()) << "nothing is to be delivered any more";
    EXPECT_THROW(static_cast<void>(group.barrier()), OperationError);
    has_left = true;
  });
}

HEADWAY_TEST_GROUPS(LeaveTest);

}  // namespace
}  // namespace headway::comm
