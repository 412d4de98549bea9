// SPDX-License-Identifier: Apache-2.0

// bfloat16 and float16 on the host, in place of CUDA's conversions, with the same rounding.

#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

namespace headway::device_emulator {

/// bfloat16 is the upper half of a float32: 8 bits of exponent, 7 of mantissa.
inline float bfloat16_to_float(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

/// Rounds to nearest, ties to even: 0x7fff rounds up what is above the middle, and the last bit that is kept adds one
/// for a tie at an odd number. 0x3f808000 is half-way between 0x3f80 and 0x3f81 and becomes 0x3f80; 0x3f818000
/// becomes 0x3f82.
inline std::uint16_t float_to_bfloat16(float value) {
  if (std::isnan(value)) return 0x7fff;
  auto const bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// float16 has 5 bits of exponent, biased by 15, and 10 of mantissa. With exponent 0 a number is mantissa * 2^-24.
inline float float16_to_float(std::uint16_t bits) {
  int const exponent = bits >> 10 & 31;
  int const mantissa = bits & 1023;
  float size = 0;
  if (exponent == 0) size = std::ldexp(static_cast<float>(mantissa), -24);
  if (exponent > 0 && exponent < 31) size = std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  if (exponent == 31) size = mantissa == 0 ? INFINITY : NAN;
  return (bits & 0x8000) != 0 ? -size : size;
}

/// 65,520 is half-way between the largest number, 65,504, and the next step, so it and all above become infinity. A
/// mantissa that rounds up to 2,048 steps carries into the exponent, which lies right above it.
inline std::uint16_t float_to_float16(float value) {
  std::uint16_t const sign = std::signbit(value) ? 0x8000 : 0;
  float const size = std::fabs(value);
  if (std::isnan(value)) return 0x7fff;
  if (size >= 65520) return sign | 0x7c00;
  // Rounds to the nearest step of the last place, ties to even like the host.
  int const exponent = size < 0x1p-14F ? -14 : std::ilogb(size);
  auto const steps = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(size, 10 - exponent)));
  return static_cast<std::uint16_t>(sign | ((static_cast<std::uint32_t>(exponent + 14) << 10) + steps));
}

}  // namespace headway::device_emulator
