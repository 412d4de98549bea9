#pragma once

#include "headway/kernels/cuda_stream.hpp"
#include "jagged/expect_sizes.hpp"

#include <cuda_runtime_api.h>

#include <limits>
#include <stdexcept>
#include <string>

namespace headway::kernels {

/// @throws std::runtime_error with the name of the call, if `error` is one
inline void check_cuda(cudaError_t error, char const* call) {
  if (error == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  throw std::runtime_error(std::string(call) + ": " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error));
}

/// Blocks of a launch for `num_units`. @throws std::invalid_argument if they are too many
inline unsigned num_blocks(std::int64_t num_units, std::int64_t units_of_block) {
  std::int64_t const count = (num_units + units_of_block - 1) / units_of_block;
  expect(count <= std::numeric_limits<std::int32_t>::max(), "jagged rows: too many for one launch");
  return static_cast<unsigned>(count);
}

}  // namespace headway::kernels
