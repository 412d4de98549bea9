// SPDX-License-Identifier: Apache-2.0
#include "headway/base/cuda_driver.hpp"

#include "headway/base/status.hpp"

#include <dlfcn.h>

namespace headway::base {

namespace {

/// @returns whether the driver exports `name`
template <typename Function>
bool find(void* handle, char const* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(handle, name));
  return function != nullptr;
}

/// Finds the functions that exchanges on streams need: those of streams, and of memory that peers map. A driver older
/// than CUDA 12 lacks some.
bool find_streams(void* handle, CudaStreamFunctions& all) {
#if CUDA_VERSION >= 13000
  find(handle, "cuMemcpyBatchAsync_v2", all.memcpy_batch_async);
#endif
  return find(handle, "cuGetErrorName", all.get_error_name) &&
         find(handle, "cuDeviceGetUuid_v2", all.device_get_uuid) &&
         find(handle, "cuMemGetAllocationGranularity", all.mem_get_allocation_granularity) &&
         find(handle, "cuMemCreate", all.mem_create) && find(handle, "cuMemRelease", all.mem_release) &&
         find(handle, "cuMemExportToShareableHandle", all.mem_export_to_shareable_handle) &&
         find(handle, "cuMemImportFromShareableHandle", all.mem_import_from_shareable_handle) &&
         find(handle, "cuMemAddressReserve", all.mem_address_reserve) &&
         find(handle, "cuMemAddressFree", all.mem_address_free) && find(handle, "cuMemMap", all.mem_map) &&
         find(handle, "cuMemUnmap", all.mem_unmap) && find(handle, "cuMemSetAccess", all.mem_set_access) &&
         find(handle, "cuMemHostRegister_v2", all.mem_host_register) &&
         find(handle, "cuMemHostUnregister", all.mem_host_unregister) &&
         find(handle, "cuMemHostGetDevicePointer_v2", all.mem_host_get_device_pointer) &&
         find(handle, "cuMemcpyAsync", all.memcpy_async) && find(handle, "cuStreamCreate", all.stream_create) &&
         find(handle, "cuStreamDestroy_v2", all.stream_destroy) && find(handle, "cuStreamQuery", all.stream_query) &&
         find(handle, "cuStreamIsCapturing", all.stream_is_capturing) &&
         find(handle, "cuStreamWaitEvent", all.stream_wait_event) &&
         find(handle, "cuStreamBatchMemOp_v2", all.stream_batch_mem_op) &&
         find(handle, "cuEventCreate", all.event_create) && find(handle, "cuEventDestroy_v2", all.event_destroy) &&
         find(handle, "cuEventRecord", all.event_record) && find(handle, "cuEventQuery", all.event_query) &&
         find(handle, "cuCtxSynchronize", all.ctx_synchronize);
}

}  // namespace

std::shared_ptr<CudaDriver const> find_loaded_cuda_driver() {
  // The handle is never closed: the driver stays loaded as long as the process.
  void* const handle = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (handle == nullptr) return nullptr;
  CudaDriver all{};
  // The exported names carry version suffixes, which cuda.h hides behind macros.
  bool const is_complete = find(handle, "cuPointerGetAttributes", all.pointer_get_attributes) &&
                           find(handle, "cuDeviceGet", all.device_get) &&
                           find(handle, "cuDeviceGetAttribute", all.device_get_attribute) &&
                           find(handle, "cuDevicePrimaryCtxRetain", all.device_primary_ctx_retain) &&
                           find(handle, "cuDevicePrimaryCtxRelease_v2", all.device_primary_ctx_release) &&
                           find(handle, "cuCtxPushCurrent_v2", all.ctx_push_current) &&
                           find(handle, "cuCtxPopCurrent_v2", all.ctx_pop_current);
  if (!is_complete) return nullptr;  // The library is a driver older than CUDA 11, or a stub.
  find(handle, "cuMemGetHandleForAddressRange", all.mem_get_handle_for_address_range);
#if CUDA_VERSION >= 12000
  find(handle, "cuTensorMapEncodeTiled", all.tensor_map_encode_tiled);
#endif
  all.has_streams = find_streams(handle, all.streams);
  return std::make_shared<CudaDriver const>(all);
}

CudaDriver const& cuda_driver() {
  static CudaDriver const driver = [] {
    auto found = find_loaded_cuda_driver();
    if (!found) throw SystemError("this process has not loaded the CUDA driver, or the driver is older than CUDA 11");
    if (!found->has_streams) throw SystemError("the CUDA driver is older than CUDA 12");
    return *found;
  }();
  return driver;
}

std::string error_name(CudaDriver const& driver, CUresult result) {
  char const* name = nullptr;
  if (driver.streams.get_error_name != nullptr) driver.streams.get_error_name(result, &name);
  return name == nullptr ? std::to_string(result) : name;
}

void check_driver(CudaDriver const& driver, CUresult result, char const* call) {
  if (result == CUDA_SUCCESS) return;
  std::string const text = std::string(call) + ": " + error_name(driver, result);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) throw CudaOutOfMemory(text);
  throw SystemError(text);
}

}  // namespace headway::base
