// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/status.hpp"
#include "headway/hybrid/body.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace headway::hybrid {

/// Writes the body of a message: numbers of 64 bits, in the byte order of the host, and arrays.
class WordWriter {
 public:
  WordWriter& word(std::uint64_t value) { return array(std::span<std::uint64_t const>(&value, 1)); }
  WordWriter& real(double value) { return word(std::bit_cast<std::uint64_t>(value)); }
  /// Elements without their number, filled up to a multiple of 8 bytes by zeros.
  template <class Element>
  WordWriter& array(std::span<Element const> elements) {
    static_assert(std::is_trivially_copyable_v<Element>);
    std::size_t const first = bytes_.size(), end = first + elements.size_bytes();
    bytes_.resize(first + (elements.size_bytes() + 7) / 8 * 8);
    if (!elements.empty()) std::memcpy(bytes_.data() + first, elements.data(), elements.size_bytes());
    std::fill(bytes_.begin() + static_cast<std::ptrdiff_t>(end), bytes_.end(), std::byte{0});
    return *this;
  }
  /// A text, after its length.
  WordWriter& text(std::string_view value) {
    return word(value.size()).array(std::span<char const>(value.data(), value.size()));
  }
  /// Takes memory for a message of so many bytes at once.
  WordWriter& reserve(std::size_t num_bytes) {
    bytes_.reserve(num_bytes);
    return *this;
  }
  [[nodiscard]] Body take() { return std::move(bytes_); }

 private:
  Body bytes_;
};

/// Reads what a WordWriter wrote. The peer may be wrong: all sizes are checked.
class WordReader {
 public:
  /// @param bytes aligned to 8 bytes
  explicit WordReader(std::span<std::byte const> bytes) : bytes_(bytes) {}

  /// @throws base::UsageError if the message is too short; likewise below
  std::uint64_t word() { return array<std::uint64_t>(1)[0]; }
  double real() { return std::bit_cast<double>(word()); }
  /// A number below or equal to `most`. @param name for the error
  std::uint64_t word_up_to(std::uint64_t most, char const* name) {
    std::uint64_t const value = word();
    base::expects(value <= most, std::string(name) + " is " + std::to_string(value) + ", and at most " +
                                     std::to_string(most) + " are allowed");
    return value;
  }
  /// A view of the next elements, as long as the message.
  template <class Element>
  std::span<Element const> array(std::size_t count) {
    base::expects(count <= bytes_.size() / sizeof(Element), "a message is too short");
    std::size_t const size = (count * sizeof(Element) + 7) / 8 * 8;
    base::expects(size <= bytes_.size(), "a message is too short");
    std::span<Element const> const elements(reinterpret_cast<Element const*>(bytes_.data()), count);
    bytes_ = bytes_.subspan(size);
    return elements;
  }
  /// A text of at most `most` bytes. @param name for the error
  std::string text(std::uint64_t most, char const* name) {
    auto const bytes = array<char>(word_up_to(most, name));
    return {bytes.begin(), bytes.end()};
  }
  void expect_end() const { base::expects(bytes_.empty(), "a message is too long"); }

 private:
  std::span<std::byte const> bytes_;
};

}  // namespace headway::hybrid
