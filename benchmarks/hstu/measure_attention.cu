// SPDX-License-Identifier: Apache-2.0

// Times the kernels of HSTU attention on a Hopper GPU and prints one JSON line per point.
// An argument such as "dim128" or "backward" selects the points whose name contains it.

#include "attention_inputs.hpp"
#include "headway/base/cuda_check.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <random>
#include <string>
#include <vector>

namespace headway::benchmarks {
namespace {

/// Milliseconds of each call except the first, sorted.
template <class Call>
std::vector<float> measure(Call call) {
  constexpr int kSamples = 15;
  cudaEvent_t events[kSamples + 1];
  for (cudaEvent_t& event : events) base::check_cuda(cudaEventCreate(&event), "cudaEventCreate");
  call();
  base::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  base::check_cuda(cudaEventRecord(events[0]), "cudaEventRecord");
  for (int i = 0; i < kSamples; ++i) {
    call();
    base::check_cuda(cudaEventRecord(events[i + 1]), "cudaEventRecord");
  }
  base::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  std::vector<float> times(kSamples);
  for (int i = 0; i < kSamples; ++i) {
    base::check_cuda(cudaEventElapsedTime(&times[static_cast<std::size_t>(i)], events[i], events[i + 1]),
                     "cudaEventElapsedTime");
  }
  for (cudaEvent_t const event : events) base::check_cuda(cudaEventDestroy(event), "cudaEventDestroy");
  std::sort(times.begin(), times.end());
  return times;
}

/// Name of a measured point, on which the filter acts.
std::string name_of(AttentionPoint const& point, char const* pass) {
  return point.lengths + "_batch" + std::to_string(point.sequence_lengths.size()) + "_heads" +
         std::to_string(point.num_heads) + "_dim" + std::to_string(point.dim) + "_bias_" + point.bias +
         (point.is_deterministic ? "_deterministic_" : "_") + pass;
}

/// Prints one JSON line: times in milliseconds, and the rate at the median.
void report(std::string const& name, std::vector<float> const& times, double flops) {
  double const median = times[times.size() / 2];
  std::printf("{\"name\": \"%s\", \"median_ms\": %.4f, \"least_ms\": %.4f, \"most_ms\": %.4f, \"tflop_per_s\": %.1f}\n",
              name.c_str(), median, times.front(), times.back(), flops / median * 1e-9);
  std::fflush(stdout);
}

/// Measures the passes of a point whose names contain `filter`. The backward pass counts as 2.5 times the operations.
void measure_point(AttentionPoint const& point, std::string const& filter) {
  std::string const forward = name_of(point, "forward"), backward = name_of(point, "backward");
  bool const wants_forward = !point.is_deterministic && forward.find(filter) != std::string::npos;
  // The kernels for Hopper have no backward pass for dim 256 with a bias.
  bool const wants_backward = (point.dim < 256 || point.bias == "none") && backward.find(filter) != std::string::npos;
  if (!wants_forward && !wants_backward) return;
  AttentionInputs const inputs(point);
  if (wants_forward) {
    auto const call = [&] {
      kernels::hstu_attention_forward_async(inputs.args().forward, nullptr, inputs.workspace());
    };
    report(forward, measure(call), point.forward_flops());
  }
  if (wants_backward) {
    auto const call = [&] { kernels::hstu_attention_backward_async(inputs.args(), nullptr, inputs.workspace()); };
    report(backward, measure(call), 2.5 * point.forward_flops());
  }
}

/// Point with `batch` sequences of one length.
AttentionPoint fixed(std::int64_t batch, std::int64_t length, std::int32_t dim, char const* bias = "none") {
  return {.lengths = "fixed" + std::to_string(length),
          .sequence_lengths = std::vector<std::int64_t>(static_cast<std::size_t>(batch), length),
          .dim = dim,
          .bias = bias};
}

/// Lengths are lognormal and clipped at 3,000; their mean is near 600.
AttentionPoint long_tail(std::int32_t dim) {
  AttentionPoint point{.lengths = "long_tail", .num_heads = 2, .dim = dim};
  std::mt19937_64 generator(1);
  std::lognormal_distribution<double> length(5.949, 1.0);
  for (int i = 0; i < 128; ++i) {
    point.sequence_lengths.push_back(std::clamp<std::int64_t>(std::llround(length(generator)), 1, 3000));
  }
  return point;
}

/// All measured points.
std::vector<AttentionPoint> points() {
  std::vector<AttentionPoint> points{fixed(32, 2048, 128), fixed(32, 4096, 128), long_tail(256), long_tail(128)};
  for (char const* bias : {"position", "time", "both"}) points.push_back(fixed(32, 2048, 128, bias));
  for (std::int64_t const length : {128, 256, 512, 1024, 8192}) {
    points.push_back(fixed(std::max<std::int64_t>(65536 / length, 4), length, 128));
  }
  for (std::int64_t const length : {128, 256, 512}) points.push_back(fixed(32, length, 128));
  for (std::int32_t const dim : {32, 64, 256}) points.push_back(fixed(32, 2048, dim));
  for (AttentionPoint point : {fixed(32, 2048, 128), long_tail(256)}) {
    point.is_deterministic = true;
    points.push_back(point);
  }
  return points;
}

}  // namespace
}  // namespace headway::benchmarks

int main(int argc, char** argv) {
  try {
    for (auto const& point : headway::benchmarks::points()) {
      headway::benchmarks::measure_point(point, argc > 1 ? argv[1] : "");
    }
  } catch (std::exception const& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
