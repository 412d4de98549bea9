#pragma once

#include <cuda.h>

#include <memory>

namespace headway::comm {

/// The functions of CUDA's driver that move memory in the order of streams, and share it between processes.
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
  decltype(&::cuMemcpyBatchAsync) memcpy_batch_async;  ///< Null: a driver before CUDA 13.
#endif
};

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
  CudaStreamFunctions streams;
  bool has_streams;  ///< Whether all of `streams` is there that is not said to be null: from CUDA 12 on.
};

/// The driver that this process has loaded; loads none. Null: there is none.
std::shared_ptr<CudaDriver const> find_loaded_cuda_driver();

}  // namespace headway::comm
