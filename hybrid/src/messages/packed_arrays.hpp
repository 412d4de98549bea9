// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/status.hpp"
#include "headway/kernels/half_blocks.hpp"
#include "headway/kernels/packed_numbers.hpp"
#include "messages/words.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace headway::hybrid {

/// Writes rows of `dim` values: the number of values, then halves and exponents, or floats if `dim` is 0.
inline void write_rows(WordWriter& to, std::span<float const> values, std::size_t dim) {
  to.word(values.size());
  if (dim == 0) {
    to.array(values);
    return;
  }
  std::vector<std::uint16_t> halves(values.size());
  std::vector<std::uint8_t> exponents(values.size() / dim * kernels::half_blocks(dim));
  kernels::encode_half_blocks(values, dim, halves, exponents);
  to.array(std::span<std::uint16_t const>(halves)).array(std::span<std::uint8_t const>(exponents));
}

/// Rows in a message that was written by write_rows().
class RowsView {
 public:
  /// @throws base::UsageError if the message is too short, or has no whole rows
  RowsView(WordReader& from, std::size_t dim) : dim_(dim), size_(from.word()) {
    if (dim == 0) {
      floats_ = from.array<float>(size_);
      return;
    }
    base::expects(size_ % dim == 0, "values are not rows of " + std::to_string(dim));
    halves_ = from.array<std::uint16_t>(size_);
    exponents_ = from.array<std::uint8_t>(size_ / dim * kernels::half_blocks(dim));
  }

  /// Number of values.
  [[nodiscard]] std::size_t size() const { return size_; }
  /// @param out (size())
  void copy_to(std::span<float> out) const {
    if (dim_ == 0) {
      std::ranges::copy(floats_, out.begin());
    } else {
      kernels::decode_half_blocks(halves_, exponents_, dim_, out);
    }
  }

 private:
  std::size_t dim_, size_;
  std::span<float const> floats_{};
  std::span<std::uint16_t const> halves_{};
  std::span<std::uint8_t const> exponents_{};
};

/// Writes bytes behind their number.
inline void write_bytes(WordWriter& to, std::span<std::byte const> bytes) { to.word(bytes.size()).array(bytes); }
inline std::span<std::byte const> read_bytes(WordReader& from) { return from.array<std::byte>(from.word()); }

template <class Number>
void append_packed(std::span<Number const> numbers, std::vector<std::byte>& to) {
  kernels::append_packed(numbers, kernels::packing_of(numbers), to);
}

}  // namespace headway::hybrid
