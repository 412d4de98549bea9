#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace headway::benchmarks {

struct CallDuration {
  double device_s = 0;  ///< Between two events around the call on the stream.
  double wall_s = 0;    ///< Until the host has seen the end.
};

/// A stream, and what times calls on it. The stream is idle when a call begins.
class CudaStopwatch {
 public:
  CudaStopwatch();
  ~CudaStopwatch();
  CudaStopwatch(CudaStopwatch const&) = delete;
  CudaStopwatch& operator=(CudaStopwatch const&) = delete;

  [[nodiscard]] cudaStream_t stream() const { return stream_; }
  void wait() const;
  [[nodiscard]] CallDuration time(std::function<void()> const& call) const;

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

/// Bytes that the device reads and writes a second while it copies `num_bytes` within its memory; the median of some.
double measure_copy_bytes_per_s(CudaStopwatch const& stopwatch, std::size_t num_bytes);

}  // namespace headway::benchmarks
