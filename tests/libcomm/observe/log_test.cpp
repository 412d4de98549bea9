// SPDX-License-Identifier: Apache-2.0

// Log records of libcomm: the transport of each peer, failures, a shrink and a slow start.

#include "headway/base/log.hpp"

#include "headway/comm/group.hpp"
#include "headway/comm/store.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <latch>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace headway::comm {
namespace {

using base::LogLevel;
using base::LogRecord;
using std::chrono::milliseconds;
using std::chrono::seconds;

GroupOptions options_of(Transport transport) {
  GroupOptions options;
  options.transport = transport;
  options.connect_timeout = seconds(30);
  options.timeout = seconds(30);
  options.name = "bags";
  return options;
}

/// Keeps all records of a test.
class LogTest : public testing::Test {
 protected:
  LogTest() {
    base::set_log_callback([this](LogRecord const& record) { records_.push_back(record); });
  }
  ~LogTest() override {
    base::set_log_callback({});
    EXPECT_TRUE(base::flush_log(seconds(30)));
  }

  /// Runs `body(rank)` in one thread per rank.
  static void run_ranks(int size, std::function<void(int)> const& body) {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) threads.emplace_back(body, rank);
  }

  /// Records of one rank and level that contain `text`, of this test so far.
  std::vector<LogRecord> find(std::string_view subsystem, LogLevel level, int rank, std::string_view text) {
    EXPECT_TRUE(base::flush_log(seconds(30)));
    std::vector<LogRecord> found;
    std::ranges::copy_if(records_, std::back_inserter(found), [&](LogRecord const& record) {
      return record.subsystem == subsystem && record.level == level && record.rank == rank &&
             record.message.find(text) != std::string::npos;
    });
    return found;
  }

 private:
  std::vector<LogRecord> records_;  ///< Written by the log's thread; read after flush_log() only.
};

TEST_F(LogTest, ConnectingTellsTheTransportOfEachPeer) {
  MemoryStore store;
  run_ranks(4, [&](int rank) {
    auto const group = Group::connect(rank, 4, store, options_of(Transport::kTcp));
    EXPECT_TRUE(group->wait(*group->barrier()).ok());
  });
  for (int const rank : {0, 1, 3}) {
    std::string const peers = rank == 0 ? "1-3" : rank == 1 ? "0, 2-3" : "0-2";
    auto const text = "connected group 'bags' of 4 ranks: tcp to " + peers;
    EXPECT_EQ(find("group", LogLevel::kInfo, rank, text).size(), 1U) << rank;
  }
  EXPECT_EQ(find("bootstrap", LogLevel::kDebug, 3, "connected with rank").size(), 3U);
  EXPECT_TRUE(find("group", LogLevel::kWarning, 0, "").empty()) << "leaving a group is no failure";
}

TEST_F(LogTest, AFailureIsAWarningWithItsCause) {
  MemoryStore store;
  run_ranks(2, [&](int rank) {
    auto const group = Group::connect(rank, 2, store, options_of(Transport::kInproc));
    if (rank == 1) return group->admin().abort("no more input");
    std::vector<std::byte> block(8);
    EXPECT_FALSE(group->wait(*group->receive(block, /*peer=*/1, /*match=*/1, /*type=*/1)).ok());
  });
  for (int const rank : {0, 1}) {
    EXPECT_EQ(find("group", LogLevel::kWarning, rank, "group 'bags' failed: rank 1 aborted: no more input").size(), 1U)
        << rank;
  }
}

TEST_F(LogTest, AShrinkTellsHowManyRanksGoOn) {
  MemoryStore store;
  std::latch all_are_ready(3);  // A rank that shrinks ends the barrier of a slower one.
  run_ranks(3, [&](int rank) {
    auto group = Group::connect(rank, 3, store, options_of(Transport::kTcp));
    auto const status = group->wait(*group->barrier());
    EXPECT_TRUE(status.ok()) << status.message();
    all_are_ready.arrive_and_wait();
    if (rank == 1) return;
    std::vector<int> const excluded{1};
    auto const shrunk = group->admin().shrink(excluded, seconds(20));
    EXPECT_EQ(shrunk.ranks, (std::vector<int>{0, 2}));
  });
  EXPECT_EQ(find("group", LogLevel::kWarning, 2, "group 'bags' goes on with 2 of 3 ranks, here as rank 1").size(), 1U);
}

TEST_F(LogTest, ASlowStartNamesWhoIsMissing) {
  MemoryStore store;
  auto options = options_of(Transport::kTcp);
  options.connect_timeout = milliseconds(1500);
  EXPECT_THROW(static_cast<void>(Group::connect(0, 2, store, options)), SystemError);
  auto const found = find("bootstrap", LogLevel::kWarning, 0, "s so far: not connected with rank 0 yet: rank 1");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].message.rfind("connecting takes ", 0), 0U) << found[0].message;
}

TEST_F(LogTest, AWrongLevelIsRefusedAtConnect) {
  ::setenv("HEADWAY_LOG", "verbose", 1);
  MemoryStore store;
  EXPECT_THROW(static_cast<void>(Group::connect(0, 1, store, options_of(Transport::kAuto))), UsageError);
  ::unsetenv("HEADWAY_LOG");
}

}  // namespace
}  // namespace headway::comm
