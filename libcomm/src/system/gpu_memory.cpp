// SPDX-License-Identifier: Apache-2.0

// Memory of GPUs without linking to CUDA: is an address on a device, and how does another device reach it?
//
// Only a process that has loaded the driver itself can have such memory, so nothing here loads it. Looking for the
// driver opens files, and so happens only when the process has loaded a library since the last look. Without a
// driver, each question about an address costs one branch.
//
// A dma-buf is a file descriptor for physical memory, which the RDMA device's driver maps. It covers whole pages, so
// the memory lies at an offset in it.

#include "system/gpu_memory.hpp"

#include "headway/base/cuda_driver.hpp"
#include "headway/comm/status.hpp"

#include <link.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>

namespace headway::comm {

namespace {

/// Number of libraries that this process has loaded so far (dlpi_adds).
unsigned long long num_libraries_loaded() {
  unsigned long long count = 0;
  auto const take_count = [](dl_phdr_info* info, std::size_t, void* to) {
    *static_cast<unsigned long long*>(to) = info->dlpi_adds;
    return 1;
  };
  ::dl_iterate_phdr(take_count, &count);
  return count;
}

/// Driver attributes of an address. All zero for an address that the driver does not know.
struct PointerFacts {
  CUcontext context = nullptr;  ///< Null also for memory of a CUDA memory pool.
  unsigned memory_type = 0;
  unsigned is_managed = 0;
  int device_ordinal = -1;
};

PointerFacts facts_of(base::CudaDriver const& driver, void const* address) {
  PointerFacts facts;
  std::array<CUpointer_attribute, 4> wanted{CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                            CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  std::array<void*, 4> answers{&facts.context, &facts.memory_type, &facts.is_managed, &facts.device_ordinal};
  auto const pointer = reinterpret_cast<CUdeviceptr>(address);
  CUresult const result = driver.pointer_get_attributes(wanted.size(), wanted.data(), answers.data(), pointer);
  return result == CUDA_SUCCESS ? facts : PointerFacts{};
}

/// Makes a device context current for one call: the library's threads have none, and the driver exports nothing
/// without.
/// Uses the primary context of the device if `context` is null.
class ContextGuard {
 public:
  ContextGuard(base::CudaDriver const& driver, CUdevice device, CUcontext context) : driver_(driver), device_(device) {
    if (context == nullptr) is_retained_ = driver.device_primary_ctx_retain(&context, device) == CUDA_SUCCESS;
    is_pushed_ = context != nullptr && driver.ctx_push_current(context) == CUDA_SUCCESS;
  }
  ~ContextGuard() {
    CUcontext popped = nullptr;
    if (is_pushed_) driver_.ctx_pop_current(&popped);
    if (is_retained_) driver_.device_primary_ctx_release(device_);
  }
  ContextGuard(ContextGuard const&) = delete;
  ContextGuard& operator=(ContextGuard const&) = delete;

 private:
  base::CudaDriver const& driver_;
  CUdevice device_;
  bool is_retained_ = false, is_pushed_ = false;
};

bool exports_dma_buf(base::CudaDriver const& driver, CUdevice device) {
  int is_supported = 0;
  return driver.device_get_attribute(&is_supported, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, device) == CUDA_SUCCESS &&
         is_supported != 0;
}

}  // namespace

void GpuMemory::look_for_driver() {
  if (driver_ != nullptr) return;
  // find_loaded_cuda_driver() opens files, so it runs only if a library was loaded since.
  auto const num_libraries = num_libraries_loaded();
  if (num_libraries == num_libraries_seen_) return;
  num_libraries_seen_ = num_libraries;
  driver_ = base::find_loaded_cuda_driver();
}

bool GpuMemory::is_on_device(std::byte const* address) const {
  auto const facts = facts_of(*driver_, address);
  return facts.memory_type == CU_MEMORYTYPE_DEVICE && facts.is_managed == 0;
}

DmaBuf GpuMemory::export_dma_buf(std::span<std::byte const> memory) const {
  expects(contains(memory), "export_dma_buf: the memory is not on a CUDA device");
  if (driver_->mem_get_handle_for_address_range == nullptr) {
    throw SystemError("cuMemGetHandleForAddressRange", ENOTSUP, "CUDA's driver is older than 11.7");
  }
  auto const facts = facts_of(*driver_, memory.data());
  std::string const device_name = "CUDA device " + std::to_string(facts.device_ordinal);
  CUdevice device{};
  if (driver_->device_get(&device, facts.device_ordinal) != CUDA_SUCCESS || !exports_dma_buf(*driver_, device)) {
    throw SystemError("dma-buf export", ENOTSUP, device_name + " or its kernel module");
  }
  // The driver exports whole pages. With pages of 4 KiB, 6,000 bytes at address 0x1F00 are exported as the three
  // pages from 0x1000 on, and the memory begins at offset 0xF00.
  auto const page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  auto const begin = reinterpret_cast<std::uint64_t>(memory.data());
  std::uint64_t const first_page = begin / page * page;
  std::uint64_t const num_bytes = (begin + memory.size() - first_page + page - 1) / page * page;
  ContextGuard const context(*driver_, device, facts.context);
  int fd = -1;
  CUresult const result =
      driver_->mem_get_handle_for_address_range(&fd, first_page, num_bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  if (result != CUDA_SUCCESS) {
    throw SystemError("cuMemGetHandleForAddressRange failed: CUDA error " + std::to_string(result) + " (" +
                      std::to_string(num_bytes) + " bytes of " + device_name + ")");
  }
  return {.fd = base::FileDescriptor(fd), .offset = begin - first_page};
}

}  // namespace headway::comm
