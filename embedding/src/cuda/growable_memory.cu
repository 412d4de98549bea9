#include "cuda/cuda_check.hpp"
#include "cuda/growable_memory.hpp"
#include "headway/comm/status.hpp"

#include <cuda.h>

#include <algorithm>
#include <new>
#include <stdexcept>
#include <string>

namespace headway::embedding {

namespace {

std::size_t round_up(std::size_t size, std::size_t unit) { return (size + unit - 1) / unit * unit; }

/// Functions of the CUDA driver for mapping memory, looked up through the runtime, so that nothing links to libcuda.
struct Driver {
  decltype(&cuMemAddressReserve) reserve;
  decltype(&cuMemAddressFree) free_addresses;
  decltype(&cuMemCreate) create;
  decltype(&cuMemRelease) release;
  decltype(&cuMemMap) map;
  decltype(&cuMemUnmap) unmap;
  decltype(&cuMemSetAccess) set_access;

  static Driver const& get() {
    static Driver const driver{
        .reserve = find<decltype(&cuMemAddressReserve)>("cuMemAddressReserve"),
        .free_addresses = find<decltype(&cuMemAddressFree)>("cuMemAddressFree"),
        .create = find<decltype(&cuMemCreate)>("cuMemCreate"),
        .release = find<decltype(&cuMemRelease)>("cuMemRelease"),
        .map = find<decltype(&cuMemMap)>("cuMemMap"),
        .unmap = find<decltype(&cuMemUnmap)>("cuMemUnmap"),
        .set_access = find<decltype(&cuMemSetAccess)>("cuMemSetAccess"),
    };
    return driver;
  }

 private:
  template <class Function>
  static Function find(char const* name) {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &result), name);
    if (function == nullptr) throw comm::SystemError(std::string("the CUDA driver has no ") + name);
    return reinterpret_cast<Function>(function);
  }
};

/// @throws std::bad_alloc if memory is short; comm::SystemError for other errors, with the name of the call
void check_driver(CUresult result, char const* call) {
  if (result == CUDA_SUCCESS) return;
  if (result == CUDA_ERROR_OUT_OF_MEMORY) throw std::bad_alloc();
  throw comm::SystemError(std::string(call) + " failed with CUresult " + std::to_string(result));
}

}  // namespace

GrowableMemory::GrowableMemory(int device, std::size_t most_bytes, std::size_t chunk_bytes)
    : device_(device),
      chunk_bytes_(chunk_bytes),
      num_reserved_(round_up(std::max<std::size_t>(most_bytes, 1), chunk_bytes)) {
  DeviceScope const scope(device);
  check(cudaFree(nullptr), "cudaFree");  // Creates the primary context, which the driver calls need.
  CUdeviceptr begin = 0;
  check_driver(Driver::get().reserve(&begin, num_reserved_, 0, 0, 0), "cuMemAddressReserve");
  begin_ = begin;
}

GrowableMemory::~GrowableMemory() {
  clear();
  static_cast<void>(Driver::get().free_addresses(begin_, num_reserved_));
}

void GrowableMemory::grow(std::size_t num_bytes) {
  if (num_bytes <= num_mapped_) return;
  std::size_t const wanted = round_up(num_bytes, chunk_bytes_);
  if (wanted > num_reserved_) {
    throw std::length_error("a table cannot have " + std::to_string(wanted) + " bytes on a device where it may have " +
                            std::to_string(num_reserved_));
  }
  auto const& driver = Driver::get();
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device_};
  CUmemAccessDesc const access{.location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  std::size_t const size = wanted - num_mapped_;
  chunks_.reserve(chunks_.size() + 1);
  CUmemGenericAllocationHandle handle = 0;
  check_driver(driver.create(&handle, size, &properties, 0), "cuMemCreate");
  auto result = driver.map(begin_ + num_mapped_, size, 0, handle, 0);
  if (result == CUDA_SUCCESS) {
    result = driver.set_access(begin_ + num_mapped_, size, &access, 1);
    if (result != CUDA_SUCCESS) static_cast<void>(driver.unmap(begin_ + num_mapped_, size));
  }
  if (result != CUDA_SUCCESS) static_cast<void>(driver.release(handle));
  check_driver(result, "cuMemMap");
  chunks_.push_back({handle, size});
  num_mapped_ = wanted;
}

void GrowableMemory::clear() {
  auto const& driver = Driver::get();
  std::size_t at = 0;
  for (auto const& chunk : chunks_) {
    static_cast<void>(driver.unmap(begin_ + at, chunk.num_bytes));
    static_cast<void>(driver.release(chunk.handle));
    at += chunk.num_bytes;
  }
  chunks_.clear();
  num_mapped_ = 0;
}

}  // namespace headway::embedding
