// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/cuda_driver.hpp"
#include "headway/base/status.hpp"

#include <cuda_runtime_api.h>

#include <string>

namespace headway::base {

/// Checks the result of a call of the CUDA runtime, and clears the runtime's last error.
/// @throws CudaOutOfMemory if device memory is short; SystemError for all other errors. Both name the call.
inline void check_cuda(cudaError_t error, char const* call) {
  if (error == cudaSuccess) [[likely]]
    return;
  static_cast<void>(cudaGetLastError());
  std::string const text = std::string(call) + ": " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error);
  if (error == cudaErrorMemoryAllocation) throw CudaOutOfMemory(text);
  throw SystemError(text);
}

/// Checks the launch of a kernel that was just enqueued.
inline void check_launch(char const* kernel) { check_cuda(cudaGetLastError(), kernel); }

/// Value of an attribute of the current device.
[[nodiscard]] inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&value, attribute, device), "cudaDeviceGetAttribute");
  return value;
}

/// Makes `device` current for the calling thread, and restores the previous device at the end of the scope.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    check_cuda(cudaGetDevice(&before_), "cudaGetDevice");
    if (before_ != device) check_cuda(cudaSetDevice(device), "cudaSetDevice");
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

}  // namespace headway::base
