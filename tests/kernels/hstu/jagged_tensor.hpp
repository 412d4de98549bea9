// SPDX-License-Identifier: Apache-2.0

// Tensors of any element type for the tests of HSTU attention on the CPU. Conversions of 16-bit floats follow their
// definition, so that they can serve as a reference.

#pragma once

#include "headway/kernels/hstu_attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace headway::kernels {

/// 16-bit float format by its definition: sign, exponent, and a fraction of `fraction_bits` bits.
struct SmallFloat {
  int fraction_bits, exponent_bias;

  /// Value of a bit pattern.
  [[nodiscard]] double decoded(std::uint16_t bits) const {
    int const exponent = (bits & 0x7fff) >> fraction_bits, fraction = bits & ((1 << fraction_bits) - 1);
    double const sign = (bits & 0x8000) != 0 ? -1 : 1;
    int const most = (0x7fff >> fraction_bits);
    if (exponent == most) return fraction != 0 ? std::nan("") : sign * HUGE_VAL;
    double const significand = exponent == 0 ? fraction : fraction + (1 << fraction_bits);
    return sign * std::ldexp(significand, std::max(exponent, 1) - exponent_bias - fraction_bits);
  }

  /// Bit pattern of the nearest value; ties go to the even one.
  [[nodiscard]] std::uint16_t encoded(double value) const {
    std::uint16_t const sign = std::signbit(value) ? 0x8000 : 0;
    int const infinity = (0x7fff >> fraction_bits) << fraction_bits;
    if (std::isnan(value)) return static_cast<std::uint16_t>(infinity | (1 << (fraction_bits - 1)));
    if (std::isinf(value)) return static_cast<std::uint16_t>(sign | infinity);
    int const exponent = value == 0 ? 1 - exponent_bias : std::max(std::ilogb(value), 1 - exponent_bias);
    double const significand = std::nearbyint(std::ldexp(std::abs(value), fraction_bits - exponent));
    // A carry out of the fraction correctly increments the exponent.
    int const bits = static_cast<int>(significand) + ((exponent + exponent_bias - 1) << fraction_bits);
    return static_cast<std::uint16_t>(sign | std::min(bits, infinity));
  }
};

inline constexpr SmallFloat kBfloat16Format{.fraction_bits = 7, .exponent_bias = 127};
inline constexpr SmallFloat kFloat16Format{.fraction_bits = 10, .exponent_bias = 15};

/// Elements of any type in memory, read and written as float64. Unset elements are NaN.
class Elements {
 public:
  Elements() = default;
  Elements(ElementType type, std::int64_t size)
      : type_(type), bytes_(static_cast<std::size_t>(size * element_bytes(type)), std::byte{0xff}) {}

  [[nodiscard]] double get(std::int64_t i) const {
    if (type_ == ElementType::kFloat64) return read<double>(i);
    if (type_ == ElementType::kFloat32) return read<float>(i);
    return format().decoded(read<std::uint16_t>(i));
  }

  void set(std::int64_t i, double value) {
    if (type_ == ElementType::kFloat64)
      write(i, value);
    else if (type_ == ElementType::kFloat32)
      write(i, static_cast<float>(value));
    else
      write(i, format().encoded(value));
  }

  [[nodiscard]] std::byte* data() { return bytes_.data(); }
  [[nodiscard]] std::byte const* data() const { return bytes_.data(); }
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(bytes_.size()) / element_bytes(type_); }
  bool operator==(Elements const&) const = default;

 private:
  static std::int64_t element_bytes(ElementType type) {
    return type == ElementType::kFloat64 ? 8 : type == ElementType::kFloat32 ? 4 : 2;
  }
  [[nodiscard]] SmallFloat format() const { return type_ == ElementType::kBfloat16 ? kBfloat16Format : kFloat16Format; }
  template <class T>
  [[nodiscard]] T read(std::int64_t i) const {
    T value;
    std::memcpy(&value, bytes_.data() + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    return value;
  }
  template <class T>
  void write(std::int64_t i, T value) {
    std::memcpy(bytes_.data() + i * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
  }

  ElementType type_ = ElementType::kFloat64;
  std::vector<std::byte> bytes_;
};

/// Bias weights: float64 if the elements are, otherwise float32.
class WeightTable : public Elements {
 public:
  WeightTable() = default;
  WeightTable(ElementType type, std::int64_t size)
      : Elements(type == ElementType::kFloat64 ? type : ElementType::kFloat32, size) {}
};

/// Nesting of a tensor's dimensions in memory: tokens outside of heads, or heads outside of tokens.
enum class HeadLayout : std::uint8_t { kTokensOutside, kHeadsOutside };

/// Tensor (tokens, heads, columns) with gaps of NaN between tokens and heads.
class JaggedTensor {
 public:
  JaggedTensor() = default;
  JaggedTensor(ElementType type, HeadLayout layout, std::int64_t tokens, std::int64_t heads, std::int64_t columns)
      : tokens_(tokens), num_heads_(heads), columns_(columns) {
    bool const tokens_outside = layout == HeadLayout::kTokensOutside;
    head_stride_ = tokens_outside ? columns + 1 : tokens * (columns + 2) + 5;
    token_stride_ = tokens_outside ? heads * (columns + 1) + 3 : columns + 2;
    elements_ = Elements(type, tokens_outside ? tokens * token_stride_ : heads * head_stride_);
  }

  [[nodiscard]] JaggedHeads<void*> heads() { return {elements_.data(), token_stride_, head_stride_}; }
  [[nodiscard]] JaggedHeads<void const*> heads() const { return {elements_.data(), token_stride_, head_stride_}; }

  [[nodiscard]] std::int64_t index(std::int64_t token, std::int64_t head, std::int64_t column) const {
    return token * token_stride_ + head * head_stride_ + column;
  }
  [[nodiscard]] double get(std::int64_t token, std::int64_t head, std::int64_t column) const {
    return elements_.get(index(token, head, column));
  }

  /// Sets each element to value(token, head, column).
  template <class Value>
  void fill(Value value) {
    for_each([&](std::int64_t t, std::int64_t h, std::int64_t c) { elements_.set(index(t, h, c), value(t, h, c)); });
  }
  template <class Visit>
  void for_each(Visit visit) const {
    for (std::int64_t token = 0; token < tokens_; ++token)
      for (std::int64_t head = 0; head < num_heads_; ++head)
        for (std::int64_t column = 0; column < columns_; ++column) visit(token, head, column);
  }

  [[nodiscard]] Elements& elements() { return elements_; }
  [[nodiscard]] Elements const& elements() const { return elements_; }
  [[nodiscard]] std::int64_t num_heads() const { return num_heads_; }
  [[nodiscard]] std::int64_t columns() const { return columns_; }

 private:
  std::int64_t tokens_ = 0, num_heads_ = 0, columns_ = 0, token_stride_ = 0, head_stride_ = 0;
  Elements elements_;
};

}  // namespace headway::kernels
