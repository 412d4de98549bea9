#pragma once

#include "headway/kernels/hstu_attention.hpp"

#include <cstdint>

namespace headway::kernels {

/// Can TMA load these rows of 16-bit numbers, and can they be written 16 bytes at a time? Strides of 0 are refused.
template <class Pointer>
[[nodiscard]] bool begins_at_units_of_16_bytes(JaggedHeads<Pointer> const& rows) {
  return reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 && rows.token_stride > 0 && rows.token_stride % 8 == 0 &&
         rows.head_stride > 0 && rows.head_stride % 8 == 0;
}

}  // namespace headway::kernels
