// SPDX-License-Identifier: Apache-2.0

// Four columns at a time: 16 bytes, the widest load of a thread. Rows whose dim is no multiple of 4, or whose address
// is not aligned to 16 bytes, are read column by column.

#pragma once

#include <array>
#include <cstdint>

namespace headway::embedding {

/// Four neighbouring columns of a row, in registers.
using Quad = std::array<float, 4>;

/// Ordinary load.
struct Load {
  template <class T>
  __device__ T operator()(T const* at) const {
    return *at;
  }
};
/// Load of global memory that no thread writes during the kernel. It also tells the compiler that the memory is global,
/// if the pointer itself comes from shared memory.
struct LoadConstant {
  template <class T>
  __device__ T operator()(T const* at) const {
    return __ldg(at);
  }
};

/// Reads columns 4 * `quad` to 4 * `quad` + 3 of a float32 row; columns from `dim` on are 0. One 16-byte load if the
/// row is aligned and `dim` is a multiple of 4.
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

/// Writes the same columns; columns from `dim` on are not written.
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
