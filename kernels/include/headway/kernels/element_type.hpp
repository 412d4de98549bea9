// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace headway::kernels {

/// Element type of a tensor.
enum class ElementType : std::uint8_t { kFloat64, kFloat32, kBfloat16, kFloat16 };

/// Size of an element in bytes.
[[nodiscard]] constexpr std::int64_t size_of(ElementType type) {
  return type == ElementType::kFloat64 ? 8 : type == ElementType::kFloat32 ? 4 : 2;
}

}  // namespace headway::kernels
