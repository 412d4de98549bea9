#include "empty.hpp"

#include "errors.hpp"

#include <headway/comm/memory.hpp>

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
