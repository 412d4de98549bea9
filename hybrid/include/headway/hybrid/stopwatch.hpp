// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace headway::hybrid {

/// Adds the time of its life to a sum.
class Stopwatch {
 public:
  explicit Stopwatch(std::chrono::nanoseconds& sum) : sum_(sum) {}
  ~Stopwatch() { sum_ += std::chrono::steady_clock::now() - begin_; }
  Stopwatch(Stopwatch const&) = delete;
  Stopwatch& operator=(Stopwatch const&) = delete;

 private:
  std::chrono::nanoseconds& sum_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace headway::hybrid
