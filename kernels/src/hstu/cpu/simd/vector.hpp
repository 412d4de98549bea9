// SPDX-License-Identifier: Apache-2.0

// Vector types for one instruction set. Each file of an instruction set includes this once; its compiler flags decide
// the width. Everything has internal linkage and calls nothing of the standard library: the linker could otherwise use
// a function compiled for newer processors in other files.

#pragma once

#include "hstu/cpu/block_kernels.hpp"

#include <cstdint>

namespace headway::kernels::hstu {
namespace {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

/// Vector types of an element type, and constants for exp().
template <class Real>
struct Simd;

template <>
struct Simd<float> {
  typedef float Vector __attribute__((vector_size(kVectorBytes)));
  typedef std::int32_t Integers __attribute__((vector_size(kVectorBytes)));
  static constexpr int kLanes = kVectorBytes / 4;
  static constexpr int kMantissaBits = 23;
  static constexpr std::int32_t kExponentBias = 127;
  static constexpr float kMaxExponent = 87;    ///< Largest argument: exp of it is finite.
  static constexpr float kRounder = 12582912;  ///< 1.5 * 2^23: adding it rounds a number to an integer.
  static constexpr float kLn2High = 0.693359375F, kLn2Low = -2.12194440e-4F;  ///< ln 2 as a sum of two parts.
  static constexpr int kTerms = 8;  ///< Terms of the series of exp() up to ln(2) / 2; its error is below rounding.
};

template <>
struct Simd<double> {
  typedef double Vector __attribute__((vector_size(kVectorBytes)));
  typedef std::int64_t Integers __attribute__((vector_size(kVectorBytes)));
  static constexpr int kLanes = kVectorBytes / 8;
  static constexpr int kMantissaBits = 52;
  static constexpr std::int64_t kExponentBias = 1023;
  static constexpr double kMaxExponent = 707;
  static constexpr double kRounder = 6755399441055744;
  static constexpr double kLn2High = 6.93145751953125e-1, kLn2Low = 1.42860682030941723212e-6;
  static constexpr int kTerms = 14;
};

template <>
struct Simd<Bfloat16Pair> {
  typedef std::uint32_t Vector __attribute__((vector_size(kVectorBytes)));
  static constexpr int kLanes = kVectorBytes / 4;
};

/// Loads a vector from memory of any alignment.
template <class Element>
inline typename Simd<Element>::Vector load_vector(Element const* from) {
  typename Simd<Element>::Vector vector;
  __builtin_memcpy(&vector, from, sizeof vector);
  return vector;
}

template <class Real>
inline typename Simd<Real>::Integers load_integers(MaskIndex<Real> const* from) {
  typename Simd<Real>::Integers vector;
  __builtin_memcpy(&vector, from, sizeof vector);
  return vector;
}

template <class Element>
inline void store_vector(typename Simd<Element>::Vector const& vector, Element* to) {
  __builtin_memcpy(to, &vector, sizeof vector);
}

/// Reinterprets the bits of a value.
template <class To, class From>
inline To same_bits(From const& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

}  // namespace
}  // namespace headway::kernels::hstu
