#pragma once

#include <cstdint>

namespace headway::kernels {

/// The 16-bit numbers of a tensor by name; memory holds their bits.
struct Bfloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

}  // namespace headway::kernels
