#pragma once

#include <cuda.h>

#include <memory>

namespace headway::comm {

/// The functions of CUDA's driver that engines need.
struct CudaDriver {
  decltype(&::cuPointerGetAttributes) pointer_get_attributes;
  decltype(&::cuDeviceGet) device_get;
  decltype(&::cuDeviceGetAttribute) device_get_attribute;
  decltype(&::cuDevicePrimaryCtxRetain) device_primary_ctx_retain;
  decltype(&::cuDevicePrimaryCtxRelease) device_primary_ctx_release;
  decltype(&::cuCtxPushCurrent) ctx_push_current;
  decltype(&::cuCtxPopCurrent) ctx_pop_current;
  decltype(&::cuMemGetHandleForAddressRange) mem_get_handle_for_address_range;  ///< Null: a driver before CUDA 11.7.
};

/// The driver that this process has loaded; loads none. Null: there is none.
std::shared_ptr<CudaDriver const> find_loaded_cuda_driver();

}  // namespace headway::comm
