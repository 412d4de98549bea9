// SPDX-License-Identifier: Apache-2.0

// GroupMonitor::on_peer_ahead(): a rank hears that peers have posted all-to-alls that it has not started.

#include "exchange.hpp"
#include "headway/comm/group.hpp"
#include "ranks_as_threads.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace headway::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Numbers that a callback was called with. Thread-safe.
class Told {
 public:
  [[nodiscard]] std::function<void(std::uint64_t)> callback() {
    return [this](std::uint64_t seq) {
      std::lock_guard const lock(mutex_);
      numbers_.push_back(seq);
      changed_.notify_all();
    };
  }
  /// Waits without a call into the library. @returns whether a number of at least `seq` came in time
  [[nodiscard]] bool wait_for(std::uint64_t seq, std::chrono::milliseconds limit = seconds(20)) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [&] { return !numbers_.empty() && numbers_.back() >= seq; });
  }
  [[nodiscard]] std::vector<std::uint64_t> numbers() {
    std::lock_guard const lock(mutex_);
    return numbers_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::uint64_t> numbers_;
};

std::size_t eight_bytes(int /*source*/, int /*destination*/) { return 8; }

class PeerAheadTest : public GroupTest {};
HEADWAY_TEST_GROUPS(PeerAheadTest);

TEST_P(PeerAheadTest, ARankThatIsNotInTheLibraryIsTold) {
  constexpr std::uint64_t kExchanges = 20;
  Told told;  // Outlives the groups, whose callback threads use it.
  run_ranks(3, options(), [&](Group& group) {
    if (group.rank() == 0) group.monitor().on_peer_ahead(0, told.callback());
    for (std::uint64_t number = 0; number < kExchanges; ++number) {
      if (group.rank() == 0) {
        ASSERT_TRUE(told.wait_for(number)) << "exchange " << number;
      }
      Exchange exchange(group.rank(), 3, number, eight_bytes);
      exchange.start(group);
      exchange.finish(group);
    }
  });
  auto const numbers = told.numbers();
  EXPECT_TRUE(std::ranges::is_sorted(numbers));
  EXPECT_EQ(std::ranges::adjacent_find(numbers), numbers.end()) << "each number is told once";
  EXPECT_EQ(numbers.back(), kExchanges - 1);
}

TEST_P(PeerAheadTest, TheNewestOfSeveralIsTold) {
  GroupOptions lagging = options();
  lagging.max_lag = lagging.max_lag_limit = 3;
  Told told;
  run_ranks(2, lagging, [&](Group& group) {
    if (group.rank() == 0) {
      group.monitor().on_peer_ahead(0, told.callback());
      ASSERT_TRUE(told.wait_for(3));
    }
    std::vector<Exchange> exchanges;
    exchanges.reserve(4);
    for (std::uint64_t number = 0; number < 4; ++number) {
      exchanges.emplace_back(group.rank(), 2, number, eight_bytes).start(group);
    }
    for (auto& exchange : exchanges) exchange.finish(group);
  });
  EXPECT_TRUE(std::ranges::is_sorted(told.numbers()));
}

TEST_P(PeerAheadTest, APeerThatWasAheadBeforeIsTold) {
  Told first, second;
  run_ranks(2, options(), [&](Group& group) {
    Exchange exchange(group.rank(), 2, 0, eight_bytes);
    if (group.rank() == 0) {
      group.monitor().on_peer_ahead(0, first.callback());
      ASSERT_TRUE(first.wait_for(0));
      group.monitor().on_peer_ahead(0, second.callback());  // The peer is ahead already.
      ASSERT_TRUE(second.wait_for(0));
    }
    finish(group, exchange.start(group));
  });
  EXPECT_EQ(first.numbers(), std::vector<std::uint64_t>{0});
}

TEST_P(PeerAheadTest, AChannelHasACallbackOfItsOwnThatEnds) {
  GroupOptions two = options();
  two.num_channels = 2;
  Told first, second;
  run_ranks(2, two, [&](Group& group) {
    Exchange one(group.rank(), 2, 0, eight_bytes), other(group.rank(), 2, 1, eight_bytes);
    Exchange last(group.rank(), 2, 2, eight_bytes);
    if (group.rank() == 0) {
      group.monitor().on_peer_ahead(0, first.callback());
      group.monitor().on_peer_ahead(1, second.callback());
      ASSERT_TRUE(second.wait_for(0));
      group.monitor().on_peer_ahead(1, {});
    }
    finish(group, one.start(group, 1));
    finish(group, other.start(group, 1));
    if (group.rank() == 0) {
      ASSERT_TRUE(first.wait_for(0));
    }
    finish(group, last.start(group, 0));
  });
  EXPECT_EQ(first.numbers(), std::vector<std::uint64_t>{0}) << "channels are numbered apart";
  EXPECT_EQ(second.numbers(), std::vector<std::uint64_t>{0}) << "its callback had ended";
}

TEST_P(PeerAheadTest, ACallbackMayStartTheExchange) {
  std::optional<Exchange> answer;
  std::promise<void> is_done;
  run_ranks(2, options(), [&](Group& group) {
    if (group.rank() == 0) {
      group.monitor().on_peer_ahead(0, [&](std::uint64_t seq) {
        answer.emplace(0, 2, seq, eight_bytes);
        finish(group, answer->start(group));
        is_done.set_value();
      });
      EXPECT_EQ(is_done.get_future().wait_for(seconds(20)), std::future_status::ready);
      return;
    }
    Exchange exchange(1, 2, 0, eight_bytes);
    exchange.start(group);
    exchange.finish(group);
  });
}

TEST_P(PeerAheadTest, AFailedGroupTellsNothing) {
  Told before, after;
  std::promise<void> has_failed;
  run_ranks(2, options(), [&](Group& group) {
    EXPECT_THROW(group.monitor().on_peer_ahead(1, before.callback()), UsageError) << "there is one channel";
    Exchange exchange(group.rank(), 2, 0, eight_bytes);
    if (group.rank() == 0) {
      group.monitor().on_peer_ahead(0, before.callback());
      ASSERT_TRUE(before.wait_for(0)) << "the peer is ahead";
      group.admin().abort("for the test");
      has_failed.set_value();
      group.monitor().on_peer_ahead(0, after.callback());
      EXPECT_FALSE(after.wait_for(0, milliseconds(50)));
      return;
    }
    exchange.start(group);
    has_failed.get_future().wait();
  });
}

TEST_P(PeerAheadTest, ACallThatWaitsIsDroppedWithItsCallback) {
  Told told;
  std::promise<void> is_registered, is_blocked, may_go_on, has_posted;
  run_ranks(2, options(), [&](Group& group) {
    Exchange exchange(group.rank(), 2, 0, eight_bytes);
    std::vector<std::byte> block(8);
    if (group.rank() == 0) {
      auto const message = group.receive(block, 1, 1, 0);
      group.on_done(*message, [&] {  // Occupies the callback thread.
        is_blocked.set_value();
        may_go_on.get_future().wait();
      });
      is_registered.set_value();
      has_posted.get_future().wait();
      is_blocked.get_future().wait();
      group.monitor().on_peer_ahead(0, told.callback());
      group.monitor().on_peer_ahead(0, {});
      may_go_on.set_value();
      exchange.start(group);
      exchange.finish(group);
      EXPECT_TRUE(told.numbers().empty()) << "the callback had ended before its call began";
      return;
    }
    is_registered.get_future().wait();
    auto const message = group.send(block, 0, 1, 0);
    exchange.start(group);
    has_posted.set_value();
    finish(group, message);
    exchange.finish(group);
  });
}

}  // namespace
}  // namespace headway::comm
