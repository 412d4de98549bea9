// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace headway::serving {

/// Counts durations in 64 buckets for each power of two, so quantiles are exact to 1.6%. From 1 ns to 2 minutes; longer
/// ones count as 2 minutes. Example: the buckets from 128 to 256 ns have the limits 129, 131, ..., 255.
class LatencyHistogram {
 public:
  void add(std::chrono::nanoseconds duration) {
    auto const value = static_cast<std::uint64_t>(std::clamp<std::int64_t>(duration.count(), 0, kMost));
    ++counts_[index_of(value)];
    ++count_;
    sum_ += std::chrono::nanoseconds(value);
  }
  [[nodiscard]] std::uint64_t count() const { return count_; }
  [[nodiscard]] std::chrono::nanoseconds sum() const { return sum_; }
  /// Durations up to a limit, exact to 1.6% of it.
  [[nodiscard]] std::uint64_t count_up_to(std::chrono::nanoseconds limit) const {
    std::uint64_t count = 0;
    for (std::size_t i = 0; i < kNumBuckets && limit_of(i) <= limit; ++i) count += counts_[i];
    return count;
  }
  /// Upper limit of the bucket of quantile `q`, from 0 to 1; 0 if there is no duration.
  [[nodiscard]] std::chrono::nanoseconds quantile(double q) const {
    auto const wanted = static_cast<std::uint64_t>(q * static_cast<double>(count_));
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < kNumBuckets; ++i) {
      seen += counts_[i];
      if (seen > 0 && seen >= wanted) return limit_of(i);
    }
    return std::chrono::nanoseconds(0);
  }

 private:
  static constexpr std::int64_t kMost = (std::int64_t{1} << 37) - 1;
  static constexpr std::size_t kPower = 6, kParts = 1 << kPower, kNumBuckets = (38 - kPower + 1) * kParts;

  static std::size_t index_of(std::uint64_t value) {
    if (value < kParts) return static_cast<std::size_t>(value);
    auto const power = static_cast<std::size_t>(std::bit_width(value)) - 1;  // From kPower.
    return (power - kPower + 1) * kParts + static_cast<std::size_t>(value >> (power - kPower)) - kParts;
  }
  static std::chrono::nanoseconds limit_of(std::size_t index) {
    if (index < kParts) return std::chrono::nanoseconds(index);
    std::size_t const power = index / kParts + kPower - 1, part = index % kParts;
    return std::chrono::nanoseconds((std::uint64_t{kParts + part + 1} << (power - kPower)) - 1);
  }

  std::array<std::uint64_t, kNumBuckets> counts_{};
  std::uint64_t count_ = 0;
  std::chrono::nanoseconds sum_{0};
};

}  // namespace headway::serving
