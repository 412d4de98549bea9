// SPDX-License-Identifier: Apache-2.0

// TMA descriptors, encoded by the driver on the host for each call: 128 bytes that go into the kernel's parameters.

#include "headway/base/cuda_driver.hpp"
#include "hstu/cuda/sm90/encode_map.hpp"

#include <cuda.h>

#include <cstdint>

namespace headway::kernels {

/// Encodes the descriptor on the host; no device memory is touched.
CUtensorMap encode_map(HeadTiles const& tiles) {
  cuuint64_t size[4], stride_bytes[3];
  cuuint32_t box[4], steps[4] = {1, 1, 1, 1};
  for (std::size_t d = 0; d < 4; ++d) {
    size[d] = static_cast<cuuint64_t>(tiles.size[d]);
    box[d] = static_cast<cuuint32_t>(tiles.box[d]);
    if (d > 0) stride_bytes[d - 1] = static_cast<cuuint64_t>(tiles.stride_bytes[d]);
  }
  // Swizzling spreads the rows of a panel over the banks of shared memory. A panel is 128 bytes wide, or 64 for dim 32.
  bool const is_narrow = tiles.box[0] == 32;
  CUtensorMap map;
  // TMA copies both 16-bit formats alike, so one data type serves both.
  base::CudaDriver const& driver = base::cuda_driver();
  CUresult const result = driver.tensor_map_encode_tiled(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void*>(tiles.data), size, stride_bytes, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, is_narrow ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  base::check_driver(driver, result, "cuTensorMapEncodeTiled");
  return map;
}

}  // namespace headway::kernels
