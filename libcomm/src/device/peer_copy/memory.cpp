// SPDX-License-Identifier: Apache-2.0

// Memory that several processes map: device memory by handles of CUDA's virtual memory management (VMM), host memory
// by memfd_create() and mmap().
//
// Idea: VMM separates the physical memory (a handle), the address range, and the mapping between them. A handle can
// be turned into a file descriptor, which a Unix socket carries to another process. cudaIpcGetMemHandle() would be
// simpler, but there the owner must not free the memory before every peer has closed it.
//
// Invariants: the handle is released as soon as it is mapped, so only mappings and descriptors keep the memory. Sizes
// are rounded up to the driver's granularity (2 MiB on today's devices) on both sides. Host memory is registered with
// the driver after it is mapped, and unregistered before it is unmapped.

#include "device/peer_copy/memory.hpp"

#include "headway/comm/status.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>

namespace headway::comm::peer_copy {

namespace {

constexpr auto kShareable = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

CUmemAllocationProp properties_on(int ordinal) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal};
  properties.requestedHandleTypes = kShareable;
  return properties;
}

/// Rounds `num_bytes` up to the driver's allocation granularity.
std::size_t whole_granules(Context const& context, CUmemAllocationProp const& properties, std::size_t num_bytes) {
  std::size_t granule = 0;
  context.check(
      context.call().mem_get_allocation_granularity(&granule, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
      "cuMemGetAllocationGranularity");
  return (num_bytes + granule - 1) / granule * granule;
}

std::string bytes_text(std::size_t num_bytes) { return std::to_string(num_bytes) + " bytes"; }

}  // namespace

DeviceSegment DeviceSegment::create(std::shared_ptr<Context const> context, std::size_t num_bytes,
                                    base::FileDescriptor& shared) {
  DeviceSegment segment;
  segment.context_ = std::move(context);
  auto const& own = *segment.context_;
  ContextScope const scope(own);
  auto const properties = properties_on(own.ordinal());
  CUmemGenericAllocationHandle handle{};
  num_bytes = whole_granules(own, properties, num_bytes);
  own.check(own.call().mem_create(&handle, num_bytes, &properties, 0), "cuMemCreate", bytes_text(num_bytes));
  int fd = -1;
  CUresult const exported = own.call().mem_export_to_shareable_handle(&fd, handle, kShareable, 0);
  shared = base::FileDescriptor(fd);
  if (exported != CUDA_SUCCESS) own.call().mem_release(handle);
  own.check(exported, "cuMemExportToShareableHandle");
  segment.map_handle(handle, num_bytes);
  return segment;
}

DeviceSegment DeviceSegment::map(std::shared_ptr<Context const> context, base::FileDescriptor shared,
                                 std::size_t num_bytes) {
  DeviceSegment segment;
  segment.context_ = std::move(context);
  auto const& own = *segment.context_;
  ContextScope const scope(own);
  CUmemGenericAllocationHandle handle{};
  auto const descriptor = reinterpret_cast<void*>(static_cast<std::uintptr_t>(shared.get()));
  own.check(own.call().mem_import_from_shareable_handle(&handle, descriptor, kShareable),
            "cuMemImportFromShareableHandle", "memory of a peer's device");
  segment.map_handle(handle, whole_granules(own, properties_on(own.ordinal()), num_bytes));
  return segment;
}

void DeviceSegment::map_handle(CUmemGenericAllocationHandle handle, std::size_t num_bytes) {
  auto const& own = *context_;
  CUresult result = own.call().mem_address_reserve(&address_, num_bytes, 0, 0, 0);
  if (result == CUDA_SUCCESS) {
    result = own.call().mem_map(address_, num_bytes, 0, handle, 0);
    if (result != CUDA_SUCCESS) own.call().mem_address_free(address_, num_bytes);
  }
  own.call().mem_release(handle);  // The mapping keeps the memory alive.
  own.check(result, "cuMemMap", bytes_text(num_bytes));
  mapped_bytes_ = num_bytes;
  CUmemAccessDesc const access{.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = own.ordinal()},
                               .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  own.check(own.call().mem_set_access(address_, num_bytes, &access, 1), "cuMemSetAccess",
            "are the two devices linked, and both visible to this process?");
}

void DeviceSegment::wait_for_device() const noexcept {
  QuietContextScope const scope(*context_);
  context_->call().ctx_synchronize();
}

DeviceSegment& DeviceSegment::operator=(DeviceSegment&& other) noexcept {
  std::swap(context_, other.context_);
  std::swap(address_, other.address_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  return *this;
}

DeviceSegment::~DeviceSegment() {
  if (mapped_bytes_ == 0) return;
  QuietContextScope const scope(*context_);
  context_->call().mem_unmap(address_, mapped_bytes_);
  context_->call().mem_address_free(address_, mapped_bytes_);
}

HostSegment HostSegment::create(std::shared_ptr<Context const> context, std::size_t num_bytes,
                                base::FileDescriptor& shared) {
  shared = base::FileDescriptor(::memfd_create("headway-cuda", MFD_CLOEXEC));
  if (!shared.valid()) throw SystemError("memfd_create", errno, bytes_text(num_bytes));
  if (::ftruncate(shared.get(), static_cast<off_t>(num_bytes)) != 0) {
    throw SystemError("ftruncate", errno, bytes_text(num_bytes));
  }
  return map(std::move(context), shared, num_bytes);
}

HostSegment HostSegment::map(std::shared_ptr<Context const> context, base::FileDescriptor const& shared,
                             std::size_t num_bytes) {
  HostSegment segment;
  segment.context_ = std::move(context);
  auto const& own = *segment.context_;
  ContextScope const scope(own);
  void* const mapped = ::mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, shared.get(), 0);
  if (mapped == MAP_FAILED) throw SystemError("mmap", errno, bytes_text(num_bytes));
  CUresult const registered =
      own.call().mem_host_register(mapped, num_bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
  if (registered != CUDA_SUCCESS) ::munmap(mapped, num_bytes);
  own.check(registered, "cuMemHostRegister", bytes_text(num_bytes));
  segment.data_ = static_cast<std::byte*>(mapped);
  segment.num_bytes_ = num_bytes;
  own.check(own.call().mem_host_get_device_pointer(&segment.address_, mapped, 0), "cuMemHostGetDevicePointer");
  return segment;
}

HostSegment& HostSegment::operator=(HostSegment&& other) noexcept {
  std::swap(context_, other.context_);
  std::swap(data_, other.data_);
  std::swap(address_, other.address_);
  std::swap(num_bytes_, other.num_bytes_);
  return *this;
}

HostSegment::~HostSegment() {
  if (data_ == nullptr) return;
  QuietContextScope const scope(*context_);
  context_->call().mem_host_unregister(data_);
  ::munmap(data_, num_bytes_);
}

}  // namespace headway::comm::peer_copy
