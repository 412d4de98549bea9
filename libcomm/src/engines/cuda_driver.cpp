#include "engines/cuda_driver.hpp"

#include <dlfcn.h>

namespace headway::comm {

namespace {

/// @returns whether the driver has it.
template <typename Function>
bool find(void* handle, char const* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(handle, name));
  return function != nullptr;
}

}  // namespace

std::shared_ptr<CudaDriver const> find_loaded_cuda_driver() {
  // The handle is kept: the driver stays as long as the process.
  void* const handle = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (handle == nullptr) return nullptr;
  CudaDriver all{};
  // Versions are part of the names: cuda.h calls them without.
  bool const is_complete = find(handle, "cuPointerGetAttributes", all.pointer_get_attributes) &&
                           find(handle, "cuDeviceGet", all.device_get) &&
                           find(handle, "cuDeviceGetAttribute", all.device_get_attribute) &&
                           find(handle, "cuDevicePrimaryCtxRetain", all.device_primary_ctx_retain) &&
                           find(handle, "cuDevicePrimaryCtxRelease_v2", all.device_primary_ctx_release) &&
                           find(handle, "cuCtxPushCurrent_v2", all.ctx_push_current) &&
                           find(handle, "cuCtxPopCurrent_v2", all.ctx_pop_current);
  if (!is_complete) return nullptr;  // A driver before CUDA 11, or somebody's imitation.
  find(handle, "cuMemGetHandleForAddressRange", all.mem_get_handle_for_address_range);
  return std::make_shared<CudaDriver const>(all);
}

}  // namespace headway::comm
