// SPDX-License-Identifier: Apache-2.0

// Products of a warp's 16 rows with tiles in shared memory. Accumulators have the layout of mma_m16n8k16(): with g =
// lane / 4 and t = lane % 4, a lane holds of each 8 columns the columns 2t and 2t + 1 of row g, then of row g + 8.
// A pitch is the distance of two rows in shared memory, in elements. Suffixes: in gemm_rs the first operand is in
// registers, in gemm_ss both are in shared memory.
//
// ldmatrix loads four 8 x 8 matrices at once; lane l gives the address of row l % 8 of matrix l / 8. For the first
// operand these are rows 0 to 7 and 8 to 15 at column 0, then the same rows at column 8. For the second operand they
// are two halves of the depth for 8 columns of the result, then for the next 8, so one load feeds two instructions.
//
// The accumulators of P have the layout of the first operand of the next product, once they are rounded to 16 bits:
// columns 16 k to 16 k + 15 of P are two groups of accumulators, in the order that mma expects. So P never leaves the
// registers. Source: PTX ISA, matrix fragments for mma.m16n8k16 and ldmatrix; FlashAttention-2 (Dao 2023) reuses P
// the same way.

#pragma once

#include "cuda/mma.cuh"

#include <cstdint>
#include <type_traits>

namespace headway::kernels {

/// acc[m][n] += sum of a[m][k] * b[n][k] over kDim columns k.
template <int kDim, int kPitch, class T, int kGroups>
__device__ __forceinline__ void gemm(float (&acc)[kGroups][4], T const* a, T const* b) {
  static_assert(kGroups % 2 == 0);
  auto const lane = static_cast<int>(threadIdx.x % kWarpThreads);
  T const* const a_row = a + lane % 16 * kPitch + lane / 16 * 8;
  T const* const b_row = b + (lane / 16 * 8 + lane % 8) * kPitch + lane / 8 % 2 * 8;
#pragma unroll
  for (int k = 0; k < kDim; k += 16) {
    std::uint32_t a_part[4];
    ldmatrix_x4(a_part, a_row + k);
#pragma unroll
    for (int group = 0; group < kGroups; group += 2) {
      std::uint32_t b_part[4];
      ldmatrix_x4(b_part, b_row + 8 * group * kPitch + k);
      mma_m16n8k16<T>(acc[group], a_part, {b_part[0], b_part[1]});
      mma_m16n8k16<T>(acc[group + 1], a_part, {b_part[2], b_part[3]});
    }
  }
}

/// acc[m][n] += sum of p[m][k] * b[k][n] over rows k. `p` holds the accumulators of another product. They are rounded
/// to T and become the register operand.
template <int kPitch, class T, int kGroups, int kPGroups>
__device__ __forceinline__ void gemm_rs(float (&acc)[kGroups][4], float const (&p)[kPGroups][4], T const* b) {
  static_assert(kGroups % 2 == 0 && kPGroups % 2 == 0);
  auto const lane = static_cast<int>(threadIdx.x % kWarpThreads);
  T const* const b_row = b + lane % 16 * kPitch + lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < kPGroups; k += 2) {
    std::uint32_t const a_part[4] = {pack<T>(p[k][0], p[k][1]), pack<T>(p[k][2], p[k][3]),
                                     pack<T>(p[k + 1][0], p[k + 1][1]), pack<T>(p[k + 1][2], p[k + 1][3])};
#pragma unroll
    for (int group = 0; group < kGroups; group += 2) {
      std::uint32_t b_part[4];
      ldmatrix_x4_trans(b_part, b_row + 8 * k * kPitch + 8 * group);
      mma_m16n8k16<T>(acc[group], a_part, {b_part[0], b_part[1]});
      mma_m16n8k16<T>(acc[group + 1], a_part, {b_part[2], b_part[3]});
    }
  }
}

__device__ __forceinline__ float add_product(float4 a, float4 b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

/// float32 overload on CUDA cores: tensor cores would round the operands.
template <int kDim, int kPitch, int kGroups>
__device__ __forceinline__ void gemm(float (&acc)[kGroups][4], float const* a, float const* b) {
  auto const lane = static_cast<int>(threadIdx.x % kWarpThreads);
  float const* const a_row = a + lane / 4 * kPitch;
  float const* const b_row = b + lane % 4 * 2 * kPitch;
  auto const load = [](float const* row) { return *reinterpret_cast<float4 const*>(row); };
#pragma unroll 2
  for (int k = 0; k < kDim; k += 4) {
    float4 const a_part[2] = {load(a_row + k), load(a_row + 8 * kPitch + k)};
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      float4 const b_part[2] = {load(b_row + 8 * group * kPitch + k), load(b_row + (8 * group + 1) * kPitch + k)};
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[group][i] = add_product(a_part[i / 2], b_part[i % 2], acc[group][i]);
    }
  }
}

/// acc[m][n] += sum of p[m][k] * b[k][n] over kNumRows rows k, with the warp's `p` in shared memory, in float32.
template <int kNumRows, int kPPitch, int kPitch, int kGroups>
__device__ __forceinline__ void gemm_ss(float (&acc)[kGroups][4], float const* p, float const* b) {
  auto const lane = static_cast<int>(threadIdx.x % kWarpThreads);
  float const* const row = p + lane / 4 * kPPitch;
#pragma unroll 2
  for (int k = 0; k < kNumRows; ++k) {
    float const a_part[2] = {row[k], row[8 * kPPitch + k]};
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      float2 const b_part = *reinterpret_cast<float2 const*>(b + k * kPitch + 8 * group + lane % 4 * 2);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        acc[group][i] = fmaf(a_part[i / 2], i % 2 == 0 ? b_part.x : b_part.y, acc[group][i]);
      }
    }
  }
}

/// Writes a lane's accumulator elements to shared memory, where the whole warp can read them.
template <int kPitch, int kGroups>
__device__ __forceinline__ void write_fragment(float* rows, float const (&fragment)[kGroups][4]) {
  auto const lane = static_cast<int>(threadIdx.x % kWarpThreads);
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float* const address = rows + (lane / 4 + 8 * r) * kPitch + 8 * group + lane % 4 * 2;
      *reinterpret_cast<float2*>(address) = make_float2(fragment[group][2 * r], fragment[group][2 * r + 1]);
    }
  }
}

}  // namespace headway::kernels
