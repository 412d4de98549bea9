// SPDX-License-Identifier: Apache-2.0
#include "headway/base/fair_shared_mutex.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <vector>

namespace headway::base {
namespace {

TEST(FairSharedMutex, ReadersOverlapAndWritersDoNot) {
  FairSharedMutex mutex;
  int value = 0;
  std::atomic<int> readers = 0, most = 0, errors = 0;
  {
    std::vector<std::jthread> threads;
    for (int number = 0; number < 4; ++number) {
      threads.emplace_back([&, number] {
        for (int i = 0; i < 500; ++i) {
          if (number == 0) {
            std::lock_guard const lock(mutex);
            if (readers > 0) ++errors;
            ++value;
          } else {
            std::shared_lock const lock(mutex);
            int const now = ++readers;
            if (now > most) most = now;
            int const before = value;
            std::this_thread::yield();
            if (value != before) ++errors;
            --readers;
          }
        }
      });
    }
  }
  EXPECT_EQ(errors, 0);
  EXPECT_EQ(value, 500);
  EXPECT_GT(most, 1);
}

// With std::shared_mutex of glibc the writer would wait until the readers end by themselves.
TEST(FairSharedMutex, ReadersThatOverlapDoNotKeepAWriterOut) {
  FairSharedMutex mutex;
  std::atomic<bool> has_written = false;
  std::atomic<int> inside = 0;
  auto const read = [&] {
    // Each reader holds the lock until the other one has it, too, unless a writer keeps that one out.
    auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!has_written && std::chrono::steady_clock::now() < end) {
      std::shared_lock const lock(mutex);
      ++inside;
      for (int i = 0; i < 100 && inside < 2; ++i) std::this_thread::sleep_for(std::chrono::microseconds(100));
      --inside;
    }
  };
  std::jthread const first(read), second(read);
  while (inside < 2) std::this_thread::yield();
  {
    std::lock_guard const lock(mutex);
    EXPECT_EQ(inside, 0);
  }
  has_written = true;
}

}  // namespace
}  // namespace headway::base
