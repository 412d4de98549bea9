#pragma once

#include <cstdint>

namespace headway::kernels {

enum class ElementType : std::uint8_t { kFloat64, kFloat32, kBfloat16, kFloat16 };

}  // namespace headway::kernels
