// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/kernels/executor.hpp"

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace headway::kernels {

/// An Executor that runs each of `count` tasks in a thread of its own. It waits for all, and rethrows one of their
/// errors.
inline void run_with_threads(std::int64_t count, Task const& task) {
  std::exception_ptr error;
  std::mutex mutex;
  std::vector<std::jthread> threads;
  for (std::int64_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      try {
        task(i);
      } catch (...) {
        std::lock_guard const lock(mutex);
        error = std::current_exception();
      }
    });
  }
  threads.clear();
  if (error) std::rethrow_exception(error);
}

}  // namespace headway::kernels
