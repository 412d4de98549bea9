// SPDX-License-Identifier: Apache-2.0
#include "sample_summary.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace headway::benchmarks {

namespace {

/// Quantile q of n sorted samples lies at index q * (n - 1), counted from 0, between two samples if that is no whole
/// number. Of five samples, the 95% quantile lies at 3.8: it is the fourth plus 0.8 of the way to the fifth.
double quantile(std::vector<double> const& sorted, double q) {
  double const position = q * static_cast<double>(sorted.size() - 1);
  auto const below = static_cast<std::size_t>(position);
  std::size_t const above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], position - static_cast<double>(below));
}

}  // namespace

SampleSummary summarize(std::vector<double> durations_s) {
  std::sort(durations_s.begin(), durations_s.end());
  double const sum = std::accumulate(durations_s.begin(), durations_s.end(), 0.0);
  return {.median_s = quantile(durations_s, 0.5),
          .p5_s = quantile(durations_s, 0.05),
          .p95_s = quantile(durations_s, 0.95),
          .mean_s = sum / static_cast<double>(durations_s.size()),
          .samples = durations_s.size()};
}

}  // namespace headway::benchmarks
