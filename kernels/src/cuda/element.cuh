// SPDX-License-Identifier: Apache-2.0

// Conversions between float32 and 16-bit elements in kernels, alone and in packed pairs. A packed pair is one
// register with the first element in the lower half, as mma and wgmma take their operands.

#pragma once

#include "cuda/device.cuh"
#include "element_bits.hpp"

// Tests compile kernels for an emulator on the CPU: see device.cuh.
#if defined(HEADWAY_DEVICE_EMULATOR)
#include "element_emulation.hpp"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace headway::kernels {

__device__ __forceinline__ float to_float(float x) { return x; }

#if defined(HEADWAY_DEVICE_EMULATOR)

inline float to_float(Bfloat16 x) { return device_emulator::bfloat16_to_float(x.bits); }
inline float to_float(Float16 x) { return device_emulator::float16_to_float(x.bits); }
template <class T>
T from_float(float x) {
  if constexpr (std::is_same_v<T, Bfloat16>) return {device_emulator::float_to_bfloat16(x)};
  if constexpr (std::is_same_v<T, Float16>) return {device_emulator::float_to_float16(x)};
  if constexpr (std::is_same_v<T, float>) return x;
}
/// Rounds two floats to the 16-bit type T (to nearest even) and packs them. `low` is in the lower half.
template <class T>
std::uint32_t pack(float low, float high) {
  return from_float<T>(low).bits | std::uint32_t(from_float<T>(high).bits) << 16;
}

template <class T>
float2 unpack(std::uint32_t pair) {
  return {to_float(T{static_cast<std::uint16_t>(pair)}), to_float(T{static_cast<std::uint16_t>(pair >> 16)})};
}

/// Mask of the 16-bit halves in which `a` and `b` are equal. Halves must be below 1,024: the CUDA version needs that.
inline std::uint32_t mask_of_equal_halves(std::uint32_t a, std::uint32_t b) {
  std::uint32_t const different = a ^ b;
  return ((different & 0xffff) == 0 ? 0xffffu : 0) | (different >> 16 == 0 ? 0xffff0000u : 0);
}

#else

/// Mask of the 16-bit halves in which `a` and `b` are equal. One instruction compares the halves as float16. They must
/// be below 1,024: these bits are zero or a subnormal number, so they are equal as float16 only if all bits are.
__device__ __forceinline__ std::uint32_t mask_of_equal_halves(std::uint32_t a, std::uint32_t b) {
  return __heq2_mask(__halves2half2(__ushort_as_half(static_cast<unsigned short>(a)),
                                    __ushort_as_half(static_cast<unsigned short>(a >> 16))),
                     __halves2half2(__ushort_as_half(static_cast<unsigned short>(b)),
                                    __ushort_as_half(static_cast<unsigned short>(b >> 16))));
}

__device__ __forceinline__ float to_float(Bfloat16 x) { return __uint_as_float(std::uint32_t(x.bits) << 16); }
__device__ __forceinline__ float to_float(Float16 x) { return __half2float(__ushort_as_half(x.bits)); }

template <class T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ Bfloat16 from_float<Bfloat16>(float x) {
  return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
}
template <>
__device__ __forceinline__ Float16 from_float<Float16>(float x) {
  return {__half_as_ushort(__float2half_rn(x))};
}

template <class T>
__device__ __forceinline__ std::uint32_t pack(float low, float high);
template <>
__device__ __forceinline__ std::uint32_t pack<Bfloat16>(float low, float high) {
  std::uint32_t result;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}
template <>
__device__ __forceinline__ std::uint32_t pack<Float16>(float low, float high) {
  std::uint32_t result;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}

template <class T>
__device__ __forceinline__ float2 unpack(std::uint32_t pair);
template <>
__device__ __forceinline__ float2 unpack<Bfloat16>(std::uint32_t pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}
template <>
__device__ __forceinline__ float2 unpack<Float16>(std::uint32_t pair) {
  return __half22float2(*reinterpret_cast<__half2 const*>(&pair));
}

#endif

}  // namespace headway::kernels
