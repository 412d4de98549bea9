#pragma once

#include <cstddef>
#include <vector>

namespace headway::benchmarks {

/// What is reported of repeated durations, in seconds.
struct SampleSummary {
  double median_s = 0;
  double p5_s = 0;
  double p95_s = 0;
  double mean_s = 0;
  std::size_t samples = 0;
};

/// Quantiles lie between the two nearest samples. `durations_s` is not empty.
SampleSummary summarize(std::vector<double> durations_s);

}  // namespace headway::benchmarks
