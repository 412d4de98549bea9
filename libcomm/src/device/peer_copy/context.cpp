// SPDX-License-Identifier: Apache-2.0

// Access to one CUDA device through the driver that the process has loaded, and its errors as exceptions.

#include "device/peer_copy/context.hpp"

#include <utility>

namespace headway::comm::peer_copy {

std::shared_ptr<Context const> Context::open(int ordinal) {
  auto driver = base::find_loaded_cuda_driver();
  expects(driver != nullptr, "this process has not loaded CUDA's driver, so it has no memory of a device");
  expects(driver->has_streams, "exchanges of device memory need a CUDA driver of version 12 or later");
  return std::make_shared<Context const>(std::move(driver), ordinal);
}

Context::Context(std::shared_ptr<base::CudaDriver const> driver, int ordinal)
    : driver_(std::move(driver)), ordinal_(ordinal) {
  check(driver_->device_get(&device_, ordinal), "cuDeviceGet");
  check(driver_->device_primary_ctx_retain(&handle_, device_), "cuDevicePrimaryCtxRetain");
}

Context::~Context() { driver_->device_primary_ctx_release(device_); }

CUuuid Context::uuid() const {
  CUuuid uuid{};
  check(call().device_get_uuid(&uuid, device_), "cuDeviceGetUuid");
  return uuid;
}

void Context::refuse(CUresult result, char const* call, std::string const& detail) const {
  auto const text = std::string(call) + " failed: " + base::error_name(*driver_, result) + " (" +
                    (detail.empty() ? "" : detail + "; ") + "CUDA device " + std::to_string(ordinal_) + ")";
  if (result == CUDA_ERROR_OUT_OF_MEMORY) throw OutOfDeviceMemory(text);
  throw SystemError(text);
}

}  // namespace headway::comm::peer_copy
