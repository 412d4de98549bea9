#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace headway::kernels {

/// @throws std::runtime_error with the name of the call, if `error` is one
inline void check(cudaError_t error, char const* call) {
  if (error == cudaSuccess) [[likely]]
    return;
  static_cast<void>(cudaGetLastError());
  throw std::runtime_error(std::string(call) + ": " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error));
}

/// Value of an attribute of the current device.
[[nodiscard]] inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&value, attribute, device), "cudaDeviceGetAttribute");
  return value;
}

}  // namespace headway::kernels
