// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

namespace headway::serving {

/// The factor that is put on the expected time of an answer, so that few requests are accepted and then late.
///
/// Idea: a factor that is exceeded by a share kSlow of the requests is a quantile of (time / expected time). Each batch
/// moves it a little: up by the share of its requests that took longer than the factor had allowed, and down by kSlow.
/// In equilibrium both are equal, whatever the distribution of times is.
///
/// Example: the factor is 1.5. One of 10 requests of a batch took longer than 1.5 times its estimate. The factor
/// becomes 1.5 * (1 + 0.2 * (0.1 - 0.002)) = 1.53. It takes some 50 batches without a slow request to go back.
///
/// Requests that become late in the queue count with the next batch, so that one stall is one step.
///
/// Invariants: it stays within [kLeast, kMost], so a stall does not close a rank for long.
/// Source: Robbins and Monro, A Stochastic Approximation Method (1951).
class DeadlineMargin {
 public:
  static constexpr double kSlow = 0.002, kLeast = 1.25, kMost = 8;

  [[nodiscard]] double factor() const { return factor_; }
  /// @param num_slow requests that took longer than allowed, of the `num_requests` of a batch that has ended
  void add_batch(std::size_t num_slow, std::size_t num_requests) {
    if (num_late_ + num_requests == 0) return;
    auto const share = static_cast<double>(num_late_ + num_slow) / static_cast<double>(num_late_ + num_requests);
    factor_ = std::clamp(factor_ * (1 + kStep * (share - kSlow)), kLeast, kMost);
    num_late_ = 0;
  }
  /// @param count requests whose deadline has passed in the queue
  void add_late(std::size_t count) { num_late_ += count; }

 private:
  static constexpr double kStep = 0.2;
  double factor_ = 1.5;
  std::size_t num_late_ = 0;  ///< Since the last batch.
};

}  // namespace headway::serving
