// Allocator functions for a CUDA memory pool of torch (pluggable allocator), loaded by name from headway.memory.

#include "torch_headers.hpp"

#include <headway/comm/device_memory.hpp>

#include <sys/types.h>

#include <cstddef>
#include <exception>

extern "C" {

__attribute__((visibility("default"))) void* headway_cuda_allocate(ssize_t size, int device, void* /*stream*/) {
  return headway::comm::allocate_device_memory(device, static_cast<std::size_t>(size));
}

__attribute__((visibility("default"))) void headway_cuda_free(void* memory, std::size_t /*size*/, int /*device*/,
                                                              void* /*stream*/) {
  try {
    headway::comm::free_device_memory(memory);
  } catch (std::exception const& error) {
    TORCH_WARN("headway: ", error.what());
  }
}

}  // extern "C"
