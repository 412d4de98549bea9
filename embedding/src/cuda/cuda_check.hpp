#pragma once

#include "headway/comm/status.hpp"

#include <cuda_runtime_api.h>

#include <new>
#include <string>

namespace headway::embedding {

/// @throws std::bad_alloc if memory is short; comm::SystemError for all other errors, with the name of the call
inline void check(cudaError_t error, char const* call) {
  if (error == cudaSuccess) [[likely]]
    return;
  static_cast<void>(cudaGetLastError());
  if (error == cudaErrorMemoryAllocation) throw std::bad_alloc();
  throw comm::SystemError(std::string(call) + ": " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error));
}

/// Checks the launch of a kernel that was just enqueued.
inline void check_launch(char const* kernel) { check(cudaGetLastError(), kernel); }

/// Makes `device` current for the calling thread, and restores the previous device at the end of the scope.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    if (before_ != device) check(cudaSetDevice(device), "cudaSetDevice");
    is_other_ = before_ != device;
  }
  DeviceScope(DeviceScope const&) = delete;
  DeviceScope& operator=(DeviceScope const&) = delete;
  ~DeviceScope() {
    if (is_other_) static_cast<void>(cudaSetDevice(before_));
  }

 private:
  int before_ = 0;
  bool is_other_ = false;
};

}  // namespace headway::embedding
