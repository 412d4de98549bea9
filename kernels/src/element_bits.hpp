// SPDX-License-Identifier: Apache-2.0

// Names for 16-bit floating-point types whose bits are only stored here. Conversions are in elements.hpp
// and, for kernels with tensor cores, in cuda/element.cuh.

#pragma once

#include <cstdint>

namespace headway::kernels {

/// 16-bit element types by name; memory holds their bits.
struct Bfloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

}  // namespace headway::kernels
