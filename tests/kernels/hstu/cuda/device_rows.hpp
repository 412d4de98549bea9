// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention_case.hpp"
#include "device_memory.hpp"
#include "element_emulation.hpp"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace headway::kernels {

/// Bits of a number rounded to an element type, in the lowest bytes.
inline std::uint32_t bits_of(ElementType type, float x) {
  if (type == ElementType::kBfloat16) return device_emulator::float_to_bfloat16(x);
  if (type == ElementType::kFloat16) return device_emulator::float_to_float16(x);
  return std::bit_cast<std::uint32_t>(x);
}

/// Inverse of bits_of().
inline float number_of(ElementType type, std::uint32_t bits) {
  if (type == ElementType::kBfloat16) return device_emulator::bfloat16_to_float(static_cast<std::uint16_t>(bits));
  if (type == ElementType::kFloat16) return device_emulator::float16_to_float(static_cast<std::uint16_t>(bits));
  return std::bit_cast<float>(bits);
}

/// One tensor (tokens, heads, columns) of a case in device memory, with NaN as padding behind the heads of each token.
/// values() leaves the padding out.
class DeviceRows {
 public:
  DeviceRows(AttentionCase const& of, ElementType type, std::vector<float> const& values, std::int32_t columns)
      : type_(type),
        row_(static_cast<std::size_t>(of.num_heads * columns)),
        stride_(row_ + static_cast<std::size_t>(of.padding)),
        columns_(columns),
        memory_(padded(values)) {}

  [[nodiscard]] JaggedHeads<void*> heads() const {
    return {memory_.data(), static_cast<std::int64_t>(stride_), columns_};
  }
  [[nodiscard]] JaggedHeads<void const*> input() const {
    return {memory_.data(), static_cast<std::int64_t>(stride_), columns_};
  }
  [[nodiscard]] std::vector<float> values() const {
    std::vector<float> values;
    std::vector<float> const all = numbers();
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (i % stride_ < row_) values.push_back(all[i]);
    }
    return values;
  }
  /// Is the padding still NaN?
  [[nodiscard]] bool is_padding_untouched() const {
    std::vector<float> const all = numbers();
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (i % stride_ >= row_ && !std::isnan(all[i])) return false;
    }
    return true;
  }

 private:
  [[nodiscard]] std::size_t element_bytes() const { return type_ == ElementType::kFloat32 ? 4 : 2; }

  [[nodiscard]] std::vector<float> numbers() const {
    std::vector<std::byte> const bytes = memory_.values();
    std::vector<float> numbers(bytes.size() / element_bytes());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, bytes.data() + i * element_bytes(), element_bytes());
      numbers[i] = number_of(type_, bits);
    }
    return numbers;
  }

  [[nodiscard]] std::vector<std::byte> padded(std::vector<float> const& values) const {
    std::vector<float> numbers(values.size() / row_ * stride_, NAN);
    for (std::size_t i = 0; i < values.size(); ++i) numbers[i / row_ * stride_ + i % row_] = values[i];
    std::vector<std::byte> bytes(numbers.size() * element_bytes());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      std::uint32_t const bits = bits_of(type_, numbers[i]);
      std::memcpy(bytes.data() + i * element_bytes(), &bits, element_bytes());
    }
    return bytes;
  }

  ElementType type_;
  std::size_t row_, stride_;  ///< Elements of a token: without and with padding.
  std::int64_t columns_;
  DeviceMemory<std::byte> memory_;
};

}  // namespace headway::kernels
