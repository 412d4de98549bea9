// SPDX-License-Identifier: Apache-2.0

// The log: order, levels, errors of the callback, locks, overflow, and fork().

#include "headway/base/log.hpp"

#include "child_process.hpp"
#include "headway/base/status.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace headway::base {
namespace {

using namespace std::chrono_literals;

constexpr auto kLimit = 30s;

class Log : public ::testing::Test {
 protected:
  ~Log() override {
    EXPECT_TRUE(flush_log(kLimit));
    set_log_callback({});
  }

  /// Keeps the messages of records in messages_.
  void keep_messages(LogLevel least = LogLevel::kDebug) {
    set_log_callback([this](LogRecord const& record) { messages_.push_back(record.message); }, least);
  }

  std::vector<std::string> messages_;  ///< Read it after flush_log() only.
};

TEST_F(Log, DeliversRecordsInOrderWithAllFields) {
  std::vector<LogRecord> records;
  set_log_callback([&](LogRecord const& record) { records.push_back(record); });
  auto const before = std::chrono::system_clock::now();
  log(LogLevel::kWarning, "group", 3, "first");
  log(LogLevel::kDebug, "device", -1, "second");
  ASSERT_TRUE(flush_log(kLimit));
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[0].level, LogLevel::kWarning);
  EXPECT_EQ(records[0].subsystem, "group");
  EXPECT_EQ(records[0].rank, 3);
  EXPECT_EQ(records[0].message, "first");
  EXPECT_GE(records[0].time, before);
  EXPECT_EQ(records[1].message, "second");
  EXPECT_EQ(records[1].rank, -1);
}

TEST_F(Log, LeavesOutRecordsBelowTheLevel) {
  keep_messages(LogLevel::kInfo);
  EXPECT_FALSE(is_logged(LogLevel::kDebug));
  EXPECT_TRUE(is_logged(LogLevel::kInfo));
  log(LogLevel::kDebug, "group", 0, "debug");
  log(LogLevel::kInfo, "group", 0, "info");
  ASSERT_TRUE(flush_log(kLimit));
  EXPECT_EQ(messages_, std::vector<std::string>{"info"});
}

TEST_F(Log, ARecordWhoseCallbackFailsGoesToStderr) {
  set_log_callback([this](LogRecord const& record) {
    if (record.message == "bad") throw std::runtime_error("no handler");
    messages_.push_back(record.message);
  });
  ::testing::internal::CaptureStderr();
  log(LogLevel::kInfo, "group", 2, "bad");
  log(LogLevel::kInfo, "group", 2, "good");
  bool const is_delivered = flush_log(kLimit);
  auto const text = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(is_delivered);
  EXPECT_NE(text.find("headway.group info: rank 2: bad (the log callback failed: no handler)\n"), std::string::npos)
      << text;
  EXPECT_EQ(messages_, std::vector<std::string>{"good"});
}

TEST_F(Log, ACallbackMayNeedALockThatTheLoggingThreadHolds) {
  std::mutex mutex;
  set_log_callback([&](LogRecord const& record) {
    std::lock_guard const lock(mutex);
    messages_.push_back(record.message);
  });
  {
    std::lock_guard const lock(mutex);
    log(LogLevel::kInfo, "group", 0, "under the lock");
    EXPECT_FALSE(flush_log(20ms)) << "the callback cannot have run";
  }
  ASSERT_TRUE(flush_log(kLimit));
  EXPECT_EQ(messages_, std::vector<std::string>{"under the lock"});
}

TEST_F(Log, ACallbackMayLogAndFlush) {
  bool has_flushed = true;
  set_log_callback([&](LogRecord const& record) {
    messages_.push_back(record.message);
    if (record.message == "outer") log(LogLevel::kInfo, "group", 0, "inner");
    has_flushed = has_flushed && flush_log(kLimit);
  });
  log(LogLevel::kInfo, "group", 0, "outer");
  ASSERT_TRUE(flush_log(kLimit));
  ASSERT_TRUE(flush_log(kLimit));  // The record that the callback logged.
  EXPECT_EQ(messages_, (std::vector<std::string>{"outer", "inner"}));
  EXPECT_FALSE(has_flushed);
}

TEST_F(Log, CountsTheRecordsThatASlowCallbackMakesItDrop) {
  std::promise<void> blocked;
  auto const released = blocked.get_future().share();
  set_log_callback([&](LogRecord const& record) {
    released.wait();
    messages_.push_back(record.message);
  });
  constexpr int kCount = 6'000;
  for (int i = 0; i < kCount; ++i) log(LogLevel::kInfo, "group", 0, std::to_string(i));
  blocked.set_value();
  ASSERT_TRUE(flush_log(kLimit));
  // 4096 wait, and one more may be with the callback. One record tells how many were dropped. There are two such
  // records if the log's thread began late: the one that the callback holds, and that of the records dropped meanwhile.
  std::size_t num_dropped = 0, num_reports = 0;
  for (auto const& message : messages_) {
    if (message.find("records were dropped") == std::string::npos) continue;
    num_dropped += std::stoul(message);
    ++num_reports;
  }
  EXPECT_GT(num_dropped, 0U);
  EXPECT_LE(num_reports, 2U);
  EXPECT_EQ(messages_.size() - num_reports + num_dropped, std::size_t{kCount});
}

TEST_F(Log, DeliversRecordsUnderOverload) {
  // Records keep coming while the callback is slow, so there is always one that was dropped.
  set_log_callback(
      [this](LogRecord const& record) {
        messages_.push_back(record.message);
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      },
      LogLevel::kInfo);
  constexpr int kCount = 6000, kMore = 400;
  for (int i = 0; i < kCount; ++i) log(LogLevel::kInfo, "group", 0, std::to_string(i));
  for (int i = 0; i < kMore; ++i) {
    log(LogLevel::kInfo, "group", 0, std::to_string(kCount + i));
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  ASSERT_TRUE(flush_log(kLimit));
  // Numbers ascend, and a report stands where its records are missing.
  std::size_t expected = 0, num_reports = 0;
  for (auto const& message : messages_) {
    if (message.find("records were dropped") != std::string::npos) {
      expected += std::stoul(message);
      ++num_reports;
    } else {
      EXPECT_EQ(std::stoul(message), expected++);
    }
  }
  EXPECT_EQ(expected, std::size_t{kCount + kMore});
  EXPECT_GE(messages_.size(), 4096 + num_reports);
  EXPECT_LE(num_reports, 3U);
}

TEST_F(Log, ServesSeveralThreads) {
  keep_messages();
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([] {
        for (int i = 0; i < 100; ++i) log(LogLevel::kInfo, "group", 0, "one");
      });
    }
  }
  ASSERT_TRUE(flush_log(kLimit));
  EXPECT_EQ(messages_.size(), 400U);
}

TEST_F(Log, AForkedChildDeliversItsRecords) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer allows no new thread in a forked child";
#elif defined(HEADWAY_IS_EMULATED)
  GTEST_SKIP() << "the emulator now and then fails in a forked child that starts a thread";
#endif
  keep_messages();
  log(LogLevel::kInfo, "group", 0, "parent");  // The parent has its log thread now.
  ASSERT_TRUE(flush_log(kLimit));
  pid_t const child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    messages_.clear();
    log(LogLevel::kInfo, "group", 0, "child");
    bool const is_right = flush_log(kLimit) && messages_ == std::vector<std::string>{"child"};
    ::_exit(is_right ? 0 : 1);
  }
  EXPECT_EQ(wait_for_exit(child), 0);
}

TEST(LogVariable, SetsTheLevelOfStderr) {
  ::setenv("HEADWAY_LOG", "info", 1);
  set_log_callback({});
  EXPECT_TRUE(is_logged(LogLevel::kInfo));
  EXPECT_FALSE(is_logged(LogLevel::kDebug));
  ::testing::internal::CaptureStderr();
  log(LogLevel::kInfo, "bootstrap", -1, "connected");
  bool const is_delivered = flush_log(kLimit);
  auto const text = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(is_delivered);
  EXPECT_NE(text.find(" headway.bootstrap info: connected\n"), std::string::npos) << text;
  ::unsetenv("HEADWAY_LOG");
  set_log_callback({});
  EXPECT_FALSE(is_logged(LogLevel::kInfo)) << "without the variable: warnings";
}

TEST(LogVariable, AWrongNameIsAnError) {
  ::setenv("HEADWAY_LOG", "loud", 1);
  try {
    check_log_variable();
    ADD_FAILURE() << "no error";
  } catch (UsageError const& error) {
    EXPECT_EQ(std::string(error.what()),
              "HEADWAY_LOG: 'loud' is no level of the log: it must be debug, info or warning");
  }
  ::unsetenv("HEADWAY_LOG");
  EXPECT_NO_THROW(check_log_variable());
}

}  // namespace
}  // namespace headway::base
