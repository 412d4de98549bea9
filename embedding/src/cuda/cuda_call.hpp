#pragma once

#include "cuda/cuda_check.hpp"
#include "cuda/cuda_table.hpp"

#include <mutex>

namespace headway::embedding {

/// Scope of one call to a CudaTable: locks its mutex, makes its device current, and takes the caller's stream. If the
/// last call used another stream, this one waits for it (on the device).
class CudaTable::Call {
 public:
  explicit Call(CudaTable const& table)
      : lock_(table.mutex_), device_(table.place_.device), stream_(table.place_.stream()) {
    if (stream_ == table.last_stream_) return;
    check(cudaEventRecord(table.is_done_, table.last_stream_), "cudaEventRecord");
    check(cudaStreamWaitEvent(stream_, table.is_done_), "cudaStreamWaitEvent");
    table.last_stream_ = stream_;
  }
  [[nodiscard]] cudaStream_t stream() const { return stream_; }

 private:
  std::lock_guard<std::mutex> lock_;
  DeviceScope device_;
  cudaStream_t stream_;
};

}  // namespace headway::embedding
