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
