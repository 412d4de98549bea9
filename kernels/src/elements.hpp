// SPDX-License-Identifier: Apache-2.0

// Element types of tensors and their conversions, for the host and for kernels without tensor cores.
//
// float16 has 5 exponent bits with bias 15, float32 has 8 with bias 127. as_real() moves the bits by 13 places and
// multiplies by 2^(127 - 15) = 2^112, which also gives subnormal numbers their value. Infinity and NaN need their own
// exponent. nearest() goes the other way and rounds ties to even, like the conversions of torch.

#pragma once

#include "element_bits.hpp"
#include "headway/kernels/element_type.hpp"
#include "headway/kernels/host_device.hpp"

#include <bit>
#include <cstdint>

namespace headway::kernels {

/// Type in which elements are accumulated: float, or double for double.
template <class Element>
struct RealOf {
  using Type = float;
};
template <>
struct RealOf<double> {
  using Type = double;
};
template <class Element>
using Real = typename RealOf<Element>::Type;

/// Converts an element exactly to its accumulation type.
HEADWAY_HOST_DEVICE inline float as_real(float element) { return element; }
HEADWAY_HOST_DEVICE inline double as_real(double element) { return element; }
HEADWAY_HOST_DEVICE inline float as_real(Bfloat16 element) {
  return std::bit_cast<float>(std::uint32_t{element.bits} << 16);
}
HEADWAY_HOST_DEVICE inline float as_real(Float16 element) {
  std::uint32_t const magnitude = element.bits & 0x7fffU, sign = std::uint32_t{element.bits & 0x8000U} << 16;
  float const scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112F;  // The exponent's bias goes from 15 to 127.
  std::uint32_t const infinite = magnitude >= 0x7c00U ? 0x7f800000U : 0;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | infinite | sign);
}

/// Nearest element; ties go to the even one.
template <class Element>
HEADWAY_HOST_DEVICE inline Element nearest(Real<Element> value) {
  return value;
}
template <>
HEADWAY_HOST_DEVICE inline Bfloat16 nearest<Bfloat16>(float value) {
  auto const bits = std::bit_cast<std::uint32_t>(value);
  std::uint32_t const rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  return {static_cast<std::uint16_t>(value == value ? rounded : 0x7fc0U)};
}
template <>
HEADWAY_HOST_DEVICE inline Float16 nearest<Float16>(float value) {
  constexpr std::uint32_t kLeastNormal = 0x38800000U, kBeyondAll = 0x47800000U, kInfinity = 0x7f800000U;
  auto const bits = std::bit_cast<std::uint32_t>(value);
  std::uint32_t const magnitude = bits & 0x7fffffffU, sign = (bits >> 16) & 0x8000U;
  std::uint32_t half = magnitude > kInfinity ? 0x7e00U : 0x7c00U;
  if (magnitude < kLeastNormal) {
    // Adding 0.5 moves the last place of the float to that of subnormal float16 numbers, so the addition rounds.
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - std::bit_cast<std::uint32_t>(0.5F);
  } else if (magnitude < kBeyondAll) {
    half = (magnitude - (112U << 23) + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  }
  return {static_cast<std::uint16_t>(sign | half)};
}

/// Calls `call.template operator()<Element>()` for the type.
template <class Call>
void with_element(ElementType type, Call const& call) {
  switch (type) {
    case ElementType::kFloat64:
      return call.template operator()<double>();
    case ElementType::kFloat32:
      return call.template operator()<float>();
    case ElementType::kBfloat16:
      return call.template operator()<Bfloat16>();
    case ElementType::kFloat16:
      return call.template operator()<Float16>();
  }
}

}  // namespace headway::kernels
