// SPDX-License-Identifier: Apache-2.0

// bfloat16 on the host and in kernels, without a library type: both sides must round to the same bits.
//
// Adding a 16-bit number to the bits of a float32 and cutting off the lower half rounds it. With 0x7fff (plus the
// last kept bit) it rounds to nearest even; with a random number it rounds up with a probability equal to the part
// cut off. Example: 1 + 2^-9 has lower half 0x4000, a quarter of the distance to the next bfloat16: a random 16-bit
// number carries into the upper half in a quarter of all cases.

#pragma once

#include <bit>
#include <cstdint>

namespace headway::embedding {

/// bfloat16: the upper 16 bits of a float32.
enum class Bfloat16 : std::uint16_t {};

constexpr float widen(Bfloat16 value) {
  return std::bit_cast<float>(std::uint32_t{static_cast<std::uint16_t>(value)} << 16);
}

namespace detail {

/// Upper 16 bits of `value` after `added` is added to its 32 bits. Infinity stays infinity; NaN stays a (quiet) NaN.
constexpr Bfloat16 round_by(float value, std::uint32_t added) {
  constexpr std::uint32_t kExponent = 0x7f800000, kQuiet = 0x00400000;
  auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & kExponent) == kExponent) {
    if ((bits & ~(kExponent | 0x80000000)) != 0) bits |= kQuiet;
  } else {
    bits += added;
  }
  return Bfloat16{static_cast<std::uint16_t>(bits >> 16)};
}

}  // namespace detail

/// Rounds to nearest, ties to even.
constexpr Bfloat16 round_to_nearest(float value) {
  return detail::round_by(value, 0x7fff + ((std::bit_cast<std::uint32_t>(value) >> 16) & 1));
}

/// Stochastic rounding: one of the two neighbours, with a probability that makes the expected result `value`.
/// @param random uniform over all 16-bit words
constexpr Bfloat16 round_stochastically(float value, std::uint16_t random) { return detail::round_by(value, random); }

}  // namespace headway::embedding
