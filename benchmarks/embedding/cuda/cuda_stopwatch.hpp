// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace headway::benchmarks {

/// Duration of a call, in seconds.
struct CallDuration {
  double device_s = 0;  ///< Time between two events around the call on the stream.
  double wall_s = 0;    ///< Host time from the call until the host has seen its end.
};

/// Owns a stream and times calls on it. The device is idle when a timed call begins.
class CudaStopwatch {
 public:
  CudaStopwatch();
  ~CudaStopwatch();
  CudaStopwatch(CudaStopwatch const&) = delete;
  CudaStopwatch& operator=(CudaStopwatch const&) = delete;

  [[nodiscard]] cudaStream_t stream() const { return stream_; }
  /// Waits for all work of the device.
  void wait() const;
  /// Waits for the device, times `call`, which enqueues work on stream(), and waits for that work.
  [[nodiscard]] CallDuration time(std::function<void()> const& call) const;

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

/// Memory bandwidth of device-to-device copies of `num_bytes`: bytes read plus bytes written per second, median.
double measure_copy_bytes_per_s(CudaStopwatch const& stopwatch, std::size_t num_bytes);

}  // namespace headway::benchmarks
