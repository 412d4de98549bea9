#pragma once

#include <cstdint>

namespace headway::kernels {

enum class ElementType : std::uint8_t { kFloat64, kFloat32, kBfloat16, kFloat16 };

/// In bytes.
[[nodiscard]] constexpr std::int64_t size_of(ElementType type) {
  return type == ElementType::kFloat64 ? 8 : type == ElementType::kFloat32 ? 4 : 2;
}

}  // namespace headway::kernels
