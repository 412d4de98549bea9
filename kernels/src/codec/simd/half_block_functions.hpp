// SPDX-License-Identifier: Apache-2.0

// Encoding and decoding of one block (half_blocks.cpp has the format), compiled per instruction set.
//
// Idea: a vector is converted by one instruction of the processor (vcvtps2ph, vcvtph2ps), which rounds ties to even and
// keeps infinities and NaNs. Without it elements.hpp converts one value after the other. A factor 2^140 is no float, so
// scaling takes two factors of half the exponent each. Values behind the last vector go through a buffer.
//
// Invariants: all instruction sets give the same bits, except those of NaNs. Everything has internal linkage, and files
// for newer instruction sets call nothing of the standard library: the linker could otherwise use a function compiled
// for newer processors in other files.
// Complexity: two passes over the block to encode it, one to decode it.

#pragma once

#include "headway/kernels/half_blocks.hpp"

#include <cstddef>
#include <cstdint>
#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#else
#include "elements.hpp"
#endif

namespace headway::kernels::codec {
namespace {

inline constexpr std::int32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;
inline constexpr int kFractionBits = 23, kBias = 127, kTop = 14;
inline constexpr std::uint8_t kLargestExponent = 254;

/// 2^exponent, for -126 to 127.
inline float power_of_two(int exponent) {
  std::uint32_t const bits = static_cast<std::uint32_t>(exponent + kBias) << kFractionBits;
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

/// Two factors with the product 2^exponent, for -252 to 254.
struct Factors {
  float first, second;
};
inline Factors factors_of(int exponent) {
  int const half = exponent / 2;
  return {power_of_two(half), power_of_two(exponent - half)};
}

/// Logarithm of the power of two that a block was divided by. Blocks of subnormal numbers count as those of 2^-126.
inline int scale_of(std::uint8_t exponent) { return (exponent == 0 ? 1 : exponent) - kBias - kTop; }

#if defined(__AVX512F__)
inline constexpr std::size_t kLanes = 16;
inline constexpr __mmask16 kAll = 0xffff;  // GCC 12 warns of the forms without a mask.
inline void to_halves(float const* values, Factors by, std::uint16_t* halves) {
  __m512 const scaled =
      _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(values), _mm512_set1_ps(by.first)), _mm512_set1_ps(by.second));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(halves),
                      _mm512_maskz_cvtps_ph(kAll, scaled, _MM_FROUND_TO_NEAREST_INT));
}
inline void to_floats(std::uint16_t const* halves, Factors by, float* values) {
  __m512 const wide = _mm512_maskz_cvtph_ps(kAll, _mm256_loadu_si256(reinterpret_cast<__m256i const*>(halves)));
  _mm512_storeu_ps(values, _mm512_mul_ps(_mm512_mul_ps(wide, _mm512_set1_ps(by.first)), _mm512_set1_ps(by.second)));
}
#elif defined(__F16C__)
inline constexpr std::size_t kLanes = 8;
inline void to_halves(float const* values, Factors by, std::uint16_t* halves) {
  __m256 const scaled =
      _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(values), _mm256_set1_ps(by.first)), _mm256_set1_ps(by.second));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(halves), _mm256_cvtps_ph(scaled, _MM_FROUND_TO_NEAREST_INT));
}
inline void to_floats(std::uint16_t const* halves, Factors by, float* values) {
  __m256 const wide = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<__m128i const*>(halves)));
  _mm256_storeu_ps(values, _mm256_mul_ps(_mm256_mul_ps(wide, _mm256_set1_ps(by.first)), _mm256_set1_ps(by.second)));
}
#else
inline constexpr std::size_t kLanes = 4;
inline void to_halves(float const* values, Factors by, std::uint16_t* halves) {
  for (std::size_t i = 0; i < kLanes; ++i) halves[i] = nearest<Float16>(values[i] * by.first * by.second).bits;
}
inline void to_floats(std::uint16_t const* halves, Factors by, float* values) {
  for (std::size_t i = 0; i < kLanes; ++i) values[i] = as_real(Float16{halves[i]}) * by.first * by.second;
}
#endif

/// Exponent field of the largest finite magnitude.
inline std::uint8_t exponent_of(float const* values, std::size_t count) {
  std::int32_t most = 0;  // A loop without branches, which the compiler vectorizes.
  for (std::size_t i = 0; i < count; ++i) {
    std::int32_t bits;
    __builtin_memcpy(&bits, values + i, sizeof bits);
    bits &= kMagnitude;
    std::int32_t const finite = bits < kInfinity ? bits : 0;
    most = most < finite ? finite : most;
  }
  return static_cast<std::uint8_t>(most >> kFractionBits);
}

inline std::uint8_t encode(float const* values, std::size_t count, std::uint16_t* halves) {
  std::uint8_t const exponent = exponent_of(values, count);
  auto const by = factors_of(-scale_of(exponent));
  std::size_t done = 0;
  for (; done + kLanes <= count; done += kLanes) to_halves(values + done, by, halves + done);
  if (done < count) {
    float last[kLanes]{};
    std::uint16_t converted[kLanes];
    __builtin_memcpy(last, values + done, (count - done) * sizeof(float));
    to_halves(last, by, converted);
    __builtin_memcpy(halves + done, converted, (count - done) * sizeof(std::uint16_t));
  }
  if (exponent == kLargestExponent) {
    constexpr std::uint16_t kTwoTo15 = 0x7800;  // It stands for 2^128, which is no float: round down instead.
    for (std::size_t i = 0; i < count; ++i) {
      if ((halves[i] & 0x7fff) == kTwoTo15) halves[i] = static_cast<std::uint16_t>(halves[i] - 1);
    }
  }
  return exponent;
}

inline void decode(std::uint16_t const* halves, std::uint8_t exponent, std::size_t count, float* values) {
  auto const by = factors_of(scale_of(exponent));
  std::size_t done = 0;
  for (; done + kLanes <= count; done += kLanes) to_floats(halves + done, by, values + done);
  if (done < count) {
    std::uint16_t last[kLanes]{};
    float converted[kLanes];
    __builtin_memcpy(last, halves + done, (count - done) * sizeof(std::uint16_t));
    to_floats(last, by, converted);
    __builtin_memcpy(values + done, converted, (count - done) * sizeof(float));
  }
}

inline constexpr HalfBlockKernels half_block_kernels_of(char const* instruction_set) {
  return {.instruction_set = instruction_set, .encode = encode, .decode = decode};
}

}  // namespace
}  // namespace headway::kernels::codec
