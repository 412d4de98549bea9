// SPDX-License-Identifier: Apache-2.0

// Conversions of elements. They have no branches, so that the compiler vectorises their loops.
//
// A float16 has a sign, 5 bits of exponent (bias 15) and 10 bits of fraction; a float32 has 8 (bias 127) and 23; a
// bfloat16 is the upper half of a float32. Shifting the bits of a float16 by 13 puts the fraction into place and
// leaves an exponent that is 112 too small, which one multiplication by 2^112 corrects. It corrects subnormal numbers
// too, since the multiplication normalises them.
//
// Example: 1.0 is 0x3c00. Shifted, it is the float32 2^-112; times 2^112 it is 1.0. Infinity, 0x7c00, would become
// 2^16, so the exponent bits are set to all ones.

#pragma once

#include "hstu/cpu/simd/vector.hpp"

namespace headway::kernels::hstu {
namespace {

struct Bfloat16 {
  std::uint16_t bits;
};

struct Float16 {
  std::uint16_t bits;
};

inline float as_real(float element) { return element; }
inline double as_real(double element) { return element; }

inline float as_real(Bfloat16 element) { return same_bits<float>(std::uint32_t{element.bits} << 16U); }

inline float as_real(Float16 element) {
  std::uint32_t const magnitude = element.bits & 0x7fffU, sign = element.bits & 0x8000U;
  float const scaled = same_bits<float>(magnitude << 13U) * 0x1p112F;  // Moves the exponent's bias from 15 to 127.
  std::uint32_t const special = magnitude >= 0x7c00U ? 0x7f800000U : 0;
  return same_bits<float>(same_bits<std::uint32_t>(scaled) | special | sign << 16U);
}

inline void set(float& element, float value) { element = value; }
inline void set(double& element, double value) { element = value; }

/// Stores a number, rounded to nearest with ties to even: adds just under half of the last place, and one more if
/// that place is odd. Examples: 0x3f808000 is a tie and goes down to 0x3f80, which is even; 0x3f818000 goes up to
/// 0x3f82.
inline void set(Bfloat16& element, float value) {
  std::uint32_t const bits = same_bits<std::uint32_t>(value);
  std::uint32_t const rounded = (bits + 0x7fffU + (bits >> 16U & 1U)) >> 16U;
  element.bits = static_cast<std::uint16_t>(value == value ? rounded : 0x7fc0U);
}

/// The same for float16. Numbers from 65,520 on round to infinity, numbers below 2^-14 to subnormal ones.
inline void set(Float16& element, float value) {
  std::uint32_t const bits = same_bits<std::uint32_t>(value), sign = bits >> 16U & 0x8000U;
  std::uint32_t const magnitude = bits & 0x7fffffffU;
  std::uint32_t const normal = (magnitude - (112U << 23U) + 0xfffU + (magnitude >> 13U & 1U)) >> 13U;
  // Adding 0.5 moves the last place of the float to that of subnormal float16 numbers, so the addition rounds.
  std::uint32_t const subnormal = same_bits<std::uint32_t>(same_bits<float>(magnitude) + 0.5F) - (126U << 23U);
  std::uint32_t const special = magnitude > 0x7f800000U ? 0x7e00U : 0x7c00U;
  std::uint32_t const finite = magnitude < 0x38800000U ? subnormal : normal;
  element.bits = static_cast<std::uint16_t>(sign | (magnitude < 0x47800000U ? finite : special));
}

/// Converts rows of elements into a block, and pads columns with zeros.
template <class Element, class Real>
inline void load_rows(ElementRows<void const*> const& source, Real* block, std::int64_t stride) {
  auto const* row = static_cast<Element const*>(source.data);
  for (std::int64_t r = 0; r < source.rows; ++r, row += source.stride, block += stride) {
    for (std::int64_t column = 0; column < source.columns; ++column) block[column] = as_real(row[column]);
    for (std::int64_t column = source.columns; column < padded(source.columns); ++column) block[column] = 0;
  }
}

template <class Element, class Real>
inline void store_rows(Real const* block, std::int64_t stride, ElementRows<void*> const& destination) {
  auto* row = static_cast<Element*>(destination.data);
  for (std::int64_t r = 0; r < destination.rows; ++r, row += destination.stride, block += stride)
    for (std::int64_t column = 0; column < destination.columns; ++column) set(row[column], block[column]);
}

inline void load(ElementRows<void const*> const& source, double* block, std::int64_t stride) {
  load_rows<double>(source, block, stride);
}

inline void load(ElementRows<void const*> const& source, float* block, std::int64_t stride) {
  if (source.type == ElementType::kBfloat16)
    load_rows<Bfloat16>(source, block, stride);
  else if (source.type == ElementType::kFloat16)
    load_rows<Float16>(source, block, stride);
  else
    load_rows<float>(source, block, stride);
}

/// Neighbours in a row are pairs already as they lie in memory, so this is a copy.
inline void load(ElementRows<void const*> const& source, Bfloat16Pair* block, std::int64_t stride) {
  auto const* row = static_cast<Bfloat16 const*>(source.data);
  auto const size = sizeof(Bfloat16) * static_cast<std::size_t>(source.columns);
  auto const room = sizeof(Bfloat16) * static_cast<std::size_t>(padded(source.columns));
  for (std::int64_t r = 0; r < source.rows; ++r, row += source.stride, block += stride) {
    __builtin_memcpy(block, row, size);
    __builtin_memset(reinterpret_cast<char*>(block) + size, 0, room - size);
  }
}

/// Pairs rows 2 i and 2 i + 1; the last row of an odd number is paired with zero.
/// Example: rows a b and c d become one row of pairs (a, c) (b, d).
inline void load_deep(ElementRows<void const*> const& source, Bfloat16Pair* block, std::int64_t stride) {
  auto const* first = static_cast<Bfloat16 const*>(source.data);
  for (std::int64_t r = 0; r < source.rows; r += 2, first += 2 * source.stride, block += stride) {
    bool const has_second = r + 1 < source.rows;
    Bfloat16 const* second = has_second ? first + source.stride : first;
    std::uint32_t const mask = has_second ? 0xffff0000U : 0;
    for (std::int64_t column = 0; column < source.columns; ++column)
      block[column].bits = first[column].bits | (std::uint32_t{second[column].bits} << 16U & mask);
    for (std::int64_t column = source.columns; column < padded(source.columns); ++column) block[column].bits = 0;
  }
}

/// Same as load(): single numbers have one layout whichever index is summed.
template <class Real>
inline void load_deep(ElementRows<void const*> const& source, Real* block, std::int64_t stride) {
  load(source, block, stride);
}

inline void store(double const* block, std::int64_t stride, ElementRows<void*> const& destination) {
  store_rows<double>(block, stride, destination);
}

inline void store(float const* block, std::int64_t stride, ElementRows<void*> const& destination) {
  if (destination.type == ElementType::kBfloat16)
    store_rows<Bfloat16>(block, stride, destination);
  else if (destination.type == ElementType::kFloat16)
    store_rows<Float16>(block, stride, destination);
  else
    store_rows<float>(block, stride, destination);
}

template <class Element>
void transpose(Element const* block, std::int64_t stride, std::int64_t rows, std::int64_t columns, Element* transposed,
               std::int64_t transposed_stride) {
  for (std::int64_t column = 0; column < columns; ++column)
    for (std::int64_t row = 0; row < rows; ++row)
      transposed[column * transposed_stride + row] = block[row * stride + column];
}

}  // namespace
}  // namespace headway::kernels::hstu
