#include "cuda/cuda_check.hpp"
#include "hstu/cuda/encode_map.hpp"

#include <cstdint>
#include <stdexcept>
#include <string>

namespace headway::kernels {
namespace {

using EncodeFunction = decltype(&cuTensorMapEncodeTiled);

// Looked up at run time, so that nothing links against the driver library.
EncodeFunction encode_function() {
  static EncodeFunction const function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result),
          "cudaGetDriverEntryPointByVersion");
    if (found == nullptr) throw std::runtime_error("the CUDA driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<EncodeFunction>(found);
  }();
  return function;
}

}  // namespace

/// Encodes the descriptor on the host; no device memory is touched.
CUtensorMap encode_map(HeadTiles const& tiles) {
  cuuint64_t size[4], stride_bytes[3];
  cuuint32_t box[4], steps[4] = {1, 1, 1, 1};
  for (std::size_t d = 0; d < 4; ++d) {
    size[d] = static_cast<cuuint64_t>(tiles.size[d]);
    box[d] = static_cast<cuuint32_t>(tiles.box[d]);
    if (d > 0) stride_bytes[d - 1] = static_cast<cuuint64_t>(tiles.stride_bytes[d]);
  }
  bool const is_narrow = tiles.box[0] == 32;
  CUtensorMap map;
  // TMA copies both 16-bit formats alike, so one data type serves both.
  CUresult const result = encode_function()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void*>(tiles.data),
                                            size, stride_bytes, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                            is_narrow ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
                                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error("cuTensorMapEncodeTiled failed with CUresult " + std::to_string(result));
  }
  return map;
}

}  // namespace headway::kernels
