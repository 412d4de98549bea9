// SPDX-License-Identifier: Apache-2.0

// Growing device memory with the virtual memory functions of the CUDA driver.
//
// Idea: cuMemAddressReserve takes a range of addresses without memory. cuMemCreate makes physical memory, cuMemMap
// puts it behind what is mapped already, cuMemSetAccess makes it readable. Pointers into the range stay valid,
// nothing is copied, and old and new memory are one array for kernels. cudaMalloc cannot do that: growth would need a
// second array, a copy, and both in memory at once.
//
// Example: most_bytes 1 GiB, chunks of 32 MiB. grow(40 MiB) maps 64 MiB; grow(50 MiB) does nothing; grow(65 MiB) maps
// 32 MiB behind them.
//
// Errors: if mapping fails, the new physical memory is released and the object is as before.

#include "cuda/runtime/growable_memory.hpp"
#include "headway/base/cuda_check.hpp"

#include <cuda.h>

#include <algorithm>
#include <stdexcept>
#include <string>

namespace headway::embedding {

namespace {

std::size_t round_up(std::size_t size, std::size_t unit) { return (size + unit - 1) / unit * unit; }

/// The functions of the driver that map memory. The CUDA runtime must have been called.
base::CudaStreamFunctions const& driver_calls() { return base::cuda_driver().streams; }

void check_driver(CUresult result, char const* call) { base::check_driver(base::cuda_driver(), result, call); }

}  // namespace

GrowableMemory::GrowableMemory(int device, std::size_t most_bytes, std::size_t chunk_bytes)
    : device_(device),
      chunk_bytes_(chunk_bytes),
      num_reserved_(round_up(std::max<std::size_t>(most_bytes, 1), chunk_bytes)) {
  base::DeviceScope const scope(device);
  base::check_cuda(cudaFree(nullptr), "cudaFree");  // Creates the primary context, which the driver calls need.
  CUdeviceptr begin = 0;
  check_driver(driver_calls().mem_address_reserve(&begin, num_reserved_, 0, 0, 0), "cuMemAddressReserve");
  begin_ = begin;
}

GrowableMemory::~GrowableMemory() {
  clear();
  static_cast<void>(driver_calls().mem_address_free(begin_, num_reserved_));
}

void GrowableMemory::grow(std::size_t num_bytes) {
  if (num_bytes <= num_mapped_) return;
  std::size_t const wanted = round_up(num_bytes, chunk_bytes_);
  if (wanted > num_reserved_) {
    throw std::length_error("a table cannot have " + std::to_string(wanted) + " bytes on a device where it may have " +
                            std::to_string(num_reserved_));
  }
  auto const& driver = driver_calls();
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device_};
  CUmemAccessDesc const access{.location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  std::size_t const size = wanted - num_mapped_;
  // Reserve first: push_back below must not throw, or the mapped chunk would never be released.
  chunks_.reserve(chunks_.size() + 1);
  CUmemGenericAllocationHandle handle = 0;
  check_driver(driver.mem_create(&handle, size, &properties, 0), "cuMemCreate");
  auto result = driver.mem_map(begin_ + num_mapped_, size, 0, handle, 0);
  if (result == CUDA_SUCCESS) {
    result = driver.mem_set_access(begin_ + num_mapped_, size, &access, 1);
    if (result != CUDA_SUCCESS) static_cast<void>(driver.mem_unmap(begin_ + num_mapped_, size));
  }
  if (result != CUDA_SUCCESS) static_cast<void>(driver.mem_release(handle));
  check_driver(result, "cuMemMap");
  chunks_.push_back({handle, size});
  num_mapped_ = wanted;
}

void GrowableMemory::clear() {
  auto const& driver = driver_calls();
  std::size_t at = 0;
  for (auto const& chunk : chunks_) {
    static_cast<void>(driver.mem_unmap(begin_ + at, chunk.num_bytes));
    static_cast<void>(driver.mem_release(chunk.handle));
    at += chunk.num_bytes;
  }
  chunks_.clear();
  num_mapped_ = 0;
}

}  // namespace headway::embedding
