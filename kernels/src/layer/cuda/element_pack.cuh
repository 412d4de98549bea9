// SPDX-License-Identifier: Apache-2.0

// Elements in packs of 16 bytes, one vector load or store of a thread: 8 elements of 16 bits, 4 floats, 2 doubles. Rows
// that are not aligned to 16 bytes use packs of one element in the same kernels.

#pragma once

#include "cuda/element.cuh"
#include "elements.hpp"

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>

namespace headway::kernels {

/// Neighbouring elements that are loaded and stored together: 16 bytes of them, or a single one. Example: a pack of
/// bfloat16 has 8 elements in a uint4. read() unpacks them to 8 floats, of() rounds 8 floats back.
template <class Element, int kSize>
struct ElementPack {
  using Values = Real<Element>[kSize];
  using Bits = std::conditional_t<kSize == 1, Element, uint4>;
  /// 16-bit elements are converted two at a time, from one word of 32 bits.
  static constexpr bool kIsPairs = kSize > 1 && sizeof(Element) == 2;

  Bits bits;

  __device__ static ElementPack load(Element const* from) { return {*reinterpret_cast<Bits const*>(from)}; }
  __device__ void store(Element* to) const { *reinterpret_cast<Bits*>(to) = bits; }

  /// Converts the elements to the arithmetic type.
  __device__ void read(Values& values) const {
    if constexpr (kIsPairs) {
      unsigned const words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float2 const pair = unpack<Element>(words[i]);
        values[2 * i] = pair.x;
        values[2 * i + 1] = pair.y;
      }
    } else if constexpr (sizeof(Element) == 2) {
      values[0] = to_float(bits);
    } else {
      std::memcpy(values, &bits, sizeof bits);
    }
  }

  /// Rounds numbers to elements.
  __device__ static ElementPack of(Values const& values) {
    ElementPack pack;
    if constexpr (kIsPairs) {
      pack.bits = make_uint4(
          headway::kernels::pack<Element>(values[0], values[1]), headway::kernels::pack<Element>(values[2], values[3]),
          headway::kernels::pack<Element>(values[4], values[5]), headway::kernels::pack<Element>(values[6], values[7]));
    } else if constexpr (sizeof(Element) == 2) {
      pack.bits = from_float<Element>(values[0]);
    } else {
      std::memcpy(&pack.bits, values, sizeof pack.bits);
    }
    return pack;
  }
};

/// Number of elements in 16 bytes.
template <class Element>
inline constexpr int kPackSize = 16 / static_cast<int>(sizeof(Element));

/// True if every address, and every distance (given in elements), is a multiple of 16 bytes.
inline bool is_in_packs(ElementType type, std::initializer_list<void const*> addresses,
                        std::initializer_list<std::int64_t> distances) {
  std::uintptr_t bits = 0;
  for (void const* const address : addresses) bits |= reinterpret_cast<std::uintptr_t>(address);
  for (std::int64_t const distance : distances) bits |= static_cast<std::uintptr_t>(distance * size_of(type));
  return bits % 16 == 0;
}

}  // namespace headway::kernels
