// SPDX-License-Identifier: Apache-2.0

// Messages between two ranks: matching, order, and what happens to those that nobody expects yet.
//
// The match of a message is its tag: a receive takes the next message with the same match.
//
// A send may come before its receive (unexpected) or after it (expected), be smaller or larger than a slot, and be
// taken by a receive of one rank or of any. Messages that wait are limited; beyond the limit they stay with their
// sender, and an error must name that sender.

#include "exchange.hpp"
#include "headway/comm/group.hpp"
#include "ranks_as_threads.hpp"
#include "test_bytes.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace headway::comm {
namespace {

constexpr DataType kType = 3;

/// Sends and receives, expected and unexpected.
class PointToPointTest : public GroupTest {
 protected:
  /// Size of a message: most are small, every fifth may exceed a slot.
  static std::size_t size_of(std::uint64_t message) {
    return message * 7919 % 5 == 0 ? message * 1237 % 60000 : message % 300;
  }

  /// Receives `size` bytes that the sender generated from `seed`. @throws std::runtime_error if they differ.
  static void expect_message(Group& group, int peer, std::uint64_t match, std::size_t size, std::uint64_t seed) {
    GuardedBytes block(size);
    finish(group, group.receive(block.span(), peer, match, kType));
    expect_bytes(block, seed);
  }

  static void expect_bytes(GuardedBytes const& block, std::uint64_t seed) {
    if (!same_bytes(block.span(), test_bytes(block.span().size(), seed)) || !block.is_guard_intact()) {
      throw std::runtime_error("message " + std::to_string(seed) + " has wrong bytes");
    }
  }
};

TEST_P(PointToPointTest, MessagesWithOneMatchArriveInTheOrderOfTheirSends) {
  run_ranks(2, options(), [](Group& group) {
    for (std::uint64_t message = 0; message < 200; ++message) {
      if (group.rank() == 0) {
        auto const block = test_bytes(size_of(message), message);
        finish(group, group.send(block, 1, 5, kType));
      } else {
        expect_message(group, 0, 5, size_of(message), message);
      }
    }
  });
}

TEST_P(PointToPointTest, AReceiveTakesTheMessageOfItsMatchThoughOthersCameFirst) {
  constexpr std::uint64_t kMessages = 100;
  run_ranks(2, options(), [](Group& group) {
    if (group.rank() == 0) {
      std::vector<std::vector<std::byte>> blocks;
      std::vector<OperationPtr> sends;
      for (std::uint64_t match = 0; match < kMessages; ++match) blocks.push_back(test_bytes(size_of(match), match));
      for (std::uint64_t match = 0; match < kMessages; ++match) {
        sends.push_back(group.send(blocks[match], 1, match, kType));
      }
      for (auto const& send : sends) finish(group, send);
    } else {
      for (std::uint64_t left = kMessages; left > 0; --left) {
        expect_message(group, 0, left - 1, size_of(left - 1), left - 1);
      }
    }
  });
}

TEST_P(PointToPointTest, ReceivesMayBeStartedBeforeTheirSends) {
  constexpr std::uint64_t kMessages = 50;
  run_ranks(3, options(), [](Group& group) {
    int const from = (group.rank() + 2) % 3, to = (group.rank() + 1) % 3;
    std::vector<GuardedBytes> outputs;
    for (std::uint64_t match = 0; match < kMessages; ++match) outputs.emplace_back(size_of(match));
    std::vector<OperationPtr> receives;
    for (std::uint64_t match = kMessages; match-- > 0;) {
      receives.push_back(group.receive(outputs[match].span(), from, match, kType));
    }
    finish(group, group.barrier());
    for (std::uint64_t match = 0; match < kMessages; ++match) {
      auto const block = test_bytes(size_of(match), match);
      finish(group, group.send(block, to, match, kType));
    }
    for (auto const& receive : receives) finish(group, receive);
    for (std::uint64_t match = 0; match < kMessages; ++match) expect_bytes(outputs[match], match);
  });
}

TEST_P(PointToPointTest, RanksMaySendLargeMessagesToEachOtherBeforeEitherReceives) {
  constexpr std::size_t kBytes = 3000000;
  run_ranks(2, options(), [](Group& group) {
    int const peer = 1 - group.rank();
    auto const block = test_bytes(kBytes, static_cast<std::uint64_t>(group.rank()));
    auto const send = group.send(block, peer, 1, kType);
    expect_message(group, peer, 1, kBytes, static_cast<std::uint64_t>(peer));
    finish(group, send);
  });
}

TEST_P(PointToPointTest, ManyMessagesMayWaitForTheirReceives) {
  constexpr std::uint64_t kMessages = 1000;
  run_ranks(2, options(), [](Group& group) {
    if (group.rank() == 0) {
      for (std::uint64_t message = 0; message < kMessages; ++message) {
        auto const block = test_bytes(message % 50, message);
        finish(group, group.send(block, 1, message % 2, kType));  // A small send completes without a receive.
      }
      finish(group, group.barrier());
    } else {
      for (std::uint64_t match = 0; match < 2; ++match) {
        for (std::uint64_t message = match; message < kMessages; message += 2) {
          expect_message(group, 0, match, message % 50, message);
        }
      }
      finish(group, group.barrier());
    }
  });
}

TEST_P(PointToPointTest, ReceiveAnyTakesFromEveryRankAndNamesIt) {
  constexpr int kSize = 4;
  static constexpr std::uint64_t kEach = 20;
  run_ranks(kSize, options(), [](Group& group) {
    if (group.rank() != 0) {
      for (std::uint64_t message = 0; message < kEach; ++message) {
        auto const block = test_bytes(100, static_cast<std::uint64_t>(group.rank()) << 8 | message);
        finish(group, group.send(block, 0, 9, kType));
      }
      return;
    }
    std::map<int, std::uint64_t> next;
    for (std::uint64_t message = 0; message < kEach * (kSize - 1); ++message) {
      GuardedBytes block(100);
      auto const receive = group.receive_any(block.span(), 9, kType);
      finish(group, receive);
      int const source = receive->source();
      ASSERT_TRUE(source >= 1 && source < kSize) << source;
      expect_bytes(block, static_cast<std::uint64_t>(source) << 8 | next[source]++);
    }
    for (int peer = 1; peer < kSize; ++peer) EXPECT_EQ(next[peer], kEach);
  });
}

TEST_P(PointToPointTest, ReceiveAnyTakesOnlyItsMatch) {
  run_ranks(2, options(), [](Group& group) {
    auto const block_a = test_bytes(10, 1), block_b = test_bytes(40000, 2);
    if (group.rank() == 1) {
      auto const send_a = group.send(block_a, 0, 1, kType);
      auto const send_b = group.send(block_b, 0, 2, kType);
      finish(group, send_a);
      finish(group, send_b);
      return;
    }
    GuardedBytes output_b(40000), output_a(10);
    auto const receive_b = group.receive_any(output_b.span(), 2, kType);
    finish(group, receive_b);
    EXPECT_EQ(receive_b->source(), 1);
    expect_bytes(output_b, 2);
    finish(group, group.receive_any(output_a.span(), 1, kType));
    expect_bytes(output_a, 1);
  });
}

TEST_P(PointToPointTest, AReceiveFromANamedRankHasNoSource) {
  run_ranks(2, options(), [](Group& group) {
    std::vector<std::byte> block(4);
    auto const operation = group.rank() == 0 ? group.send(block, 1, 0, kType) : group.receive(block, 0, 0, kType);
    finish(group, operation);
    EXPECT_EQ(operation->source(), -1);
  });
}

TEST_P(PointToPointTest, MessagesAndExchangesDoNotMix) {
  run_ranks(3, options(), [](Group& group) {
    int const left = (group.rank() + 2) % 3, right = (group.rank() + 1) % 3;
    for (std::uint64_t round = 0; round < 30; ++round) {
      auto const block = test_bytes(size_of(round), round);
      auto const send = group.send(block, right, 1, kType);
      Exchange exchange(group.rank(), 3, round, uneven_sizes(round, 9000));
      exchange.start(group);
      expect_message(group, left, 1, size_of(round), round);
      exchange.finish(group);
      finish(group, send);
    }
  });
}

TEST_P(PointToPointTest, AMessageToNoRankIsAUsageError) {
  run_ranks(2, options(), [](Group& group) {
    std::vector<std::byte> block(4);
    EXPECT_THROW(group.send(block, 2, 0, kType), UsageError);
    EXPECT_THROW(group.send(block, -1, 0, kType), UsageError);
    EXPECT_THROW(group.receive(block, 2, 0, kType), UsageError);
    EXPECT_THROW(group.send(block, 1 - group.rank(), std::uint64_t{1} << 63, kType), UsageError);
    finish(group, group.barrier());
  });
}

TEST_P(PointToPointTest, UnexpectedMessagesBeyondTheLimitWaitAtTheirSender) {
  constexpr std::uint64_t kMessages = 60;
  auto limited = options();
  limited.unexpected_bytes = 64 * 1024;  // Room for 8 messages.
  run_ranks(2, limited, [](Group& group) {
    if (group.rank() == 0) {
      std::vector<std::vector<std::byte>> blocks;
      std::vector<OperationPtr> sends;
      for (std::uint64_t message = 0; message < kMessages; ++message) blocks.push_back(test_bytes(8000, message));
      for (auto const& block : blocks) sends.push_back(group.send(block, 1, 9, kType));
      finish(group, group.send(blocks[0], 1, 1, kType));
      for (auto const& send : sends) finish(group, send);
    } else {
      // Wait for a standstill: 8 messages are held, and each slot holds one more.
      for (int look = 0; look < 100; ++look) {
        EXPECT_TRUE(group.monitor().health().ok());
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      for (std::uint64_t message = 0; message < kMessages; ++message) expect_message(group, 0, 9, 8000, message);
      expect_message(group, 0, 1, 8000, 0);
    }
  });
}

TEST_P(PointToPointTest, AReceiveBehindTooManyUnexpectedMessagesFailsAndNamesTheirSender) {
  auto limited = options();
  limited.unexpected_bytes = 64 * 1024;
  limited.timeout = std::chrono::milliseconds(500);
  run_ranks(2, limited, [](Group& group) {
    std::vector<std::byte> block(8000);
    if (group.rank() == 0) {
      std::vector<OperationPtr> sends;
      for (int message = 0; message < 60; ++message) sends.push_back(group.send(block, 1, 9, kType));
      EXPECT_FALSE(group.wait(*sends.back()).ok());
    } else {
      Status const status = group.wait(*group.receive(block, 0, 1, kType));
      EXPECT_FALSE(status.ok());
      // The sender's own timeout may come first. It names this rank.
      bool const is_of_sender = status.message().find("waits for rank 1 to take messages") != std::string_view::npos;
      bool const names_limit = status.message().find("unexpected_bytes") != std::string_view::npos &&
                               status.message().find("messages of rank 0") != std::string_view::npos;
      EXPECT_TRUE(is_of_sender || names_limit) << status.message();
    }
  });
}

HEADWAY_TEST_GROUPS(PointToPointTest);

}  // namespace
}  // namespace headway::comm
