// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <memory>
#include <new>
#include <string>
#include <string_view>

namespace headway::base {

/// Driver functions that transfers between GPUs need: stream-ordered copies, stream memory operations, and memory
/// shared between processes. A driver older than CUDA 12 lacks some of them: see CudaDriver::has_streams.
struct CudaStreamFunctions {
  decltype(&::cuGetErrorName) get_error_name;
  decltype(&::cuDeviceGetUuid) device_get_uuid;
  decltype(&::cuMemGetAllocationGranularity) mem_get_allocation_granularity;
  decltype(&::cuMemCreate) mem_create;
  decltype(&::cuMemRelease) mem_release;
  decltype(&::cuMemExportToShareableHandle) mem_export_to_shareable_handle;
  decltype(&::cuMemImportFromShareableHandle) mem_import_from_shareable_handle;
  decltype(&::cuMemAddressReserve) mem_address_reserve;
  decltype(&::cuMemAddressFree) mem_address_free;
  decltype(&::cuMemMap) mem_map;
  decltype(&::cuMemUnmap) mem_unmap;
  decltype(&::cuMemSetAccess) mem_set_access;
  decltype(&::cuMemHostRegister) mem_host_register;
  decltype(&::cuMemHostUnregister) mem_host_unregister;
  decltype(&::cuMemHostGetDevicePointer) mem_host_get_device_pointer;
  decltype(&::cuMemcpyAsync) memcpy_async;
  decltype(&::cuStreamCreate) stream_create;
  decltype(&::cuStreamDestroy) stream_destroy;
  decltype(&::cuStreamQuery) stream_query;
  decltype(&::cuStreamIsCapturing) stream_is_capturing;
  decltype(&::cuStreamWaitEvent) stream_wait_event;
  decltype(&::cuStreamBatchMemOp) stream_batch_mem_op;
  decltype(&::cuEventCreate) event_create;
  decltype(&::cuEventDestroy) event_destroy;
  decltype(&::cuEventRecord) event_record;
  decltype(&::cuEventQuery) event_query;
  decltype(&::cuCtxSynchronize) ctx_synchronize;
#if CUDA_VERSION >= 13000
  /// Null if the driver is older than CUDA 13.
  decltype(&::cuMemcpyBatchAsync) memcpy_batch_async;
#endif
};

/// CUDA driver functions, resolved with dlsym(). Entries are never null unless their comment says so.
struct CudaDriver {
  decltype(&::cuPointerGetAttributes) pointer_get_attributes;
  decltype(&::cuDeviceGet) device_get;
  decltype(&::cuDeviceGetAttribute) device_get_attribute;
  decltype(&::cuDevicePrimaryCtxRetain) device_primary_ctx_retain;
  decltype(&::cuDevicePrimaryCtxRelease) device_primary_ctx_release;
  decltype(&::cuCtxPushCurrent) ctx_push_current;
  decltype(&::cuCtxPopCurrent) ctx_pop_current;
  /// Null if the driver is older than CUDA 11.7.
  decltype(&::cuMemGetHandleForAddressRange) mem_get_handle_for_address_range;
#if CUDA_VERSION >= 12000
  /// Null if the driver is older than CUDA 12.
  decltype(&::cuTensorMapEncodeTiled) tensor_map_encode_tiled;
#endif
  CudaStreamFunctions streams;
  bool has_streams;  ///< True if every non-optional entry of `streams` was found (driver of CUDA 12 or later).
};

/// Returns the CUDA driver that this process has already loaded. Null if there is none, or if it is older than CUDA 11.
/// Never loads it.
std::shared_ptr<CudaDriver const> find_loaded_cuda_driver();

/// Returns the driver of a process that has already called the CUDA runtime. Looks it up once, at the first call.
/// @throws SystemError if the process has not loaded the driver, or if the driver is older than CUDA 12.
CudaDriver const& cuda_driver();

/// Thrown if a device has too little free memory. what() names the call.
class CudaOutOfMemory : public std::bad_alloc {
 public:
  explicit CudaOutOfMemory(std::string_view text) : text_(std::make_shared<std::string const>(text)) {}
  [[nodiscard]] char const* what() const noexcept override { return text_->c_str(); }

 private:
  std::shared_ptr<std::string const> text_;  ///< Shared, so that copies of the exception cannot throw.
};

/// Name of `result`, such as CUDA_ERROR_INVALID_VALUE, or its number if the driver does not know it.
[[nodiscard]] std::string error_name(CudaDriver const& driver, CUresult result);

/// Checks the result of a call of the driver.
/// @throws CudaOutOfMemory if device memory is short; SystemError for all other errors. Both name the call.
void check_driver(CudaDriver const& driver, CUresult result, char const* call);

}  // namespace headway::base
