// SPDX-License-Identifier: Apache-2.0
#include "cuda_stopwatch.hpp"

#include "device_array.hpp"
#include "sample_summary.hpp"

#include <chrono>
#include <cstddef>
#include <vector>

namespace headway::benchmarks {

CudaStopwatch::CudaStopwatch() {
  base::check_cuda(cudaStreamCreate(&stream_), "cudaStreamCreate");
  base::check_cuda(cudaEventCreate(&begin_), "cudaEventCreate");
  base::check_cuda(cudaEventCreate(&end_), "cudaEventCreate");
}

CudaStopwatch::~CudaStopwatch() {
  static_cast<void>(cudaEventDestroy(end_));
  static_cast<void>(cudaEventDestroy(begin_));
  static_cast<void>(cudaStreamDestroy(stream_));
}

void CudaStopwatch::wait() const { base::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }

CallDuration CudaStopwatch::time(std::function<void()> const& call) const {
  using Clock = std::chrono::steady_clock;
  wait();
  auto const begin = Clock::now();
  base::check_cuda(cudaEventRecord(begin_, stream_), "cudaEventRecord");
  call();
  base::check_cuda(cudaEventRecord(end_, stream_), "cudaEventRecord");
  base::check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  double const wall_s = std::chrono::duration<double>(Clock::now() - begin).count();
  float device_ms = 0;
  base::check_cuda(cudaEventElapsedTime(&device_ms, begin_, end_), "cudaEventElapsedTime");
  return {.device_s = 1e-3 * static_cast<double>(device_ms), .wall_s = wall_s};
}

double measure_copy_bytes_per_s(CudaStopwatch const& stopwatch, std::size_t num_bytes) {
  constexpr int kWarmups = 3, kCopies = 10;
  DeviceArray<std::byte> const source(num_bytes), destination(num_bytes);
  base::check_cuda(cudaMemset(source.data(), 0, num_bytes), "cudaMemset");
  std::vector<double> durations_s;
  for (int i = -kWarmups; i < kCopies; ++i) {
    auto const duration = stopwatch.time([&] {
      base::check_cuda(
          cudaMemcpyAsync(destination.data(), source.data(), num_bytes, cudaMemcpyDeviceToDevice, stopwatch.stream()),
          "cudaMemcpyAsync");
    });
    if (i >= 0) durations_s.push_back(duration.device_s);
  }
  return 2 * static_cast<double>(num_bytes) / summarize(durations_s).median_s;
}

}  // namespace headway::benchmarks
