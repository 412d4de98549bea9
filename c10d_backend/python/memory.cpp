// SPDX-License-Identifier: Apache-2.0

// Memory of libcomm as torch tensors: registered host memory for headway.empty(), and device memory that peers can
// map for headway.mem_pool().
//
// Ownership: the storage's deleter holds the shared pointer, so the memory returns to libcomm's cache with the last
// tensor that views it. torch calls the two C functions from its caching allocator, which asks for large segments and
// keeps them.

#include "python/memory.hpp"

#include "runtime/errors.hpp"

#include <headway/comm/device_memory.hpp>
#include <headway/comm/memory.hpp>

#include <sys/types.h>

#include <cstddef>
#include <exception>

namespace headway::c10d_backend {

at::Tensor empty(at::IntArrayRef size, at::ScalarType dtype) {
  auto const options = at::TensorOptions(dtype);
  // A meta tensor validates the sizes and gives the number of bytes.
  std::size_t const num_bytes = at::empty(size, options.device(at::kMeta)).nbytes();
  auto const memory = translate_errors("empty", [&] { return comm::allocate(num_bytes); });
  return at::from_blob(
      memory.get(), size, [memory](void*) {}, options.device(at::kCPU));
}

}  // namespace headway::c10d_backend

// Allocator of a CUDA memory pool of torch (CUDAPluggableAllocator). headway.mem_pool() loads these functions by name.
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
