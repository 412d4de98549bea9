// SPDX-License-Identifier: Apache-2.0

// ThreadPool: each task runs once; errors, concurrent callers, and fork().

#include "headway/base/thread_pool.hpp"

#include "child_process.hpp"
#include "headway/base/status.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace headway::base {
namespace {

TEST(ThreadPool, DoesEachTaskOnce) {
  for (int const num_threads : {1, 2, 5}) {
    ThreadPool pool(num_threads);
    for (std::size_t const count : {0UL, 1UL, 2UL, 1'000UL}) {
      std::vector<std::atomic<int>> done(count);
      pool.run(count, [&](std::size_t i) { ++done[i]; });
      for (auto const& each : done) EXPECT_EQ(each, 1);
    }
  }
}

TEST(ThreadPool, ThrowsTheFirstErrorAndGoesOn) {
  ThreadPool pool(3);
  for (int round = 0; round < 50; ++round) {
    try {
      pool.run(100, [](std::size_t i) {
        if (i == 40) throw std::runtime_error("task 40");
      });
      FAIL() << "no error";
    } catch (std::runtime_error const& error) {
      EXPECT_EQ(std::string(error.what()), "task 40");
    }
    std::atomic<int> done = 0;
    pool.run(10, [&](std::size_t) { ++done; });
    EXPECT_EQ(done, 10);
  }
  EXPECT_THROW(ThreadPool(0), UsageError);
}

TEST(ThreadPool, ServesSeveralCallersAtOnce) {
  ThreadPool pool(3);
  std::atomic<int> done = 0;
  {
    std::vector<std::jthread> callers;
    for (int caller = 0; caller < 4; ++caller) {
      callers.emplace_back([&] {
        for (int round = 0; round < 200; ++round) pool.run(5, [&](std::size_t) { ++done; });
      });
    }
  }
  EXPECT_EQ(done, 4 * 200 * 5);
}

TEST(ThreadPool, AForkedChildWorksAloneAndEnds) {
  auto pool = std::make_unique<ThreadPool>(3);
  pool->run(100, [](std::size_t) {});
  pid_t const child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::atomic<int> done = 0;
    pool->run(100, [&](std::size_t) { ++done; });
    pool.reset();
    ::_exit(done == 100 ? 0 : 1);
  }
  EXPECT_EQ(wait_for_exit(child), 0);
}

}  // namespace
}  // namespace headway::base
