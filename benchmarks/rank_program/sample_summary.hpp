// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

namespace headway::benchmarks {

/// Summary of repeated durations, in seconds.
struct SampleSummary {
  double median_s = 0;
  double p5_s = 0;   ///< 5% quantile.
  double p95_s = 0;  ///< 95% quantile.
  double mean_s = 0;
  std::size_t samples = 0;  ///< Number of durations.
};

/// Interpolates quantiles between the two nearest samples. `durations_s` must not be empty.
SampleSummary summarize(std::vector<double> durations_s);

}  // namespace headway::benchmarks
