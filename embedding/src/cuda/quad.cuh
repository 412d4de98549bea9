#pragma once

#include <array>
#include <cstdint>

namespace headway::embedding {

/// Four columns of a row.
using Quad = std::array<float, 4>;

/// How four columns are read.
struct Load {
  template <class T>
  __device__ T operator()(T const* at) const {
    return *at;
  }
};
/// Of memory that no thread writes meanwhile. A compiler then knows that it is global, wherever the pointer was.
struct LoadConstant {
  template <class T>
  __device__ T operator()(T const* at) const {
    return __ldg(at);
  }
};

/// Four columns of a row of float32 from 4 * `quad` on; what is beyond dim is 0.
template <class From = Load>
[[nodiscard]] __device__ Quad read_quad(float const* row, std::uint32_t quad, std::uint32_t dim, From load = {}) {
  float const* const from = row + 4 * quad;
  if (dim % 4 == 0 && reinterpret_cast<std::uintptr_t>(row) % sizeof(float4) == 0) {
    float4 const four = load(reinterpret_cast<float4 const*>(from));
    return {four.x, four.y, four.z, four.w};
  }
  Quad values{};
#pragma unroll
  for (std::uint32_t i = 0; i < 4; ++i) {
    if (4 * quad + i < dim) values[i] = load(from + i);
  }
  return values;
}

__device__ inline void write_quad(float* row, std::uint32_t quad, std::uint32_t dim, Quad const& values) {
  float* const to = row + 4 * quad;
  if (dim % 4 == 0 && reinterpret_cast<std::uintptr_t>(row) % sizeof(float4) == 0) {
    *reinterpret_cast<float4*>(to) = {values[0], values[1], values[2], values[3]};
    return;
  }
#pragma unroll
  for (std::uint32_t i = 0; i < 4; ++i) {
    if (4 * quad + i < dim) to[i] = values[i];
  }
}

}  // namespace headway::embedding
