// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

// Numbers in as few bits as they need. packed_numbers.cpp has an example. `Number` is std::int64_t, std::uint64_t or
// std::uint32_t.

namespace headway::kernels {

/// How numbers are packed: each is stored as its difference from the smallest one.
struct Packing {
  std::uint64_t minimum = 0;
  unsigned width = 0;  ///< Bits of a difference: 0 to 56, or 64.

  static constexpr std::size_t kHeaderBytes = 9;  ///< Width (1 byte) and minimum (8).
  [[nodiscard]] std::size_t num_bytes(std::size_t count) const {
    return kHeaderBytes + count / 8 * width + (count % 8 * width + 7) / 8;
  }
};

template <class Number>
[[nodiscard]] Packing packing_of(std::span<Number const> numbers);
/// The packing of numbers from 0 up to `most`.
[[nodiscard]] Packing packing_up_to(std::uint64_t most);

/// Appends `packing.num_bytes(numbers.size())` bytes.
/// @param packing of packing_of(), or one whose range holds all numbers
template <class Number>
void append_packed(std::span<Number const> numbers, Packing const& packing, std::vector<std::byte>& to);

/// Fills `numbers` from the front of `bytes`, which may be hostile.
/// @returns the bytes behind
/// @throws base::UsageError if there are too few bytes, the width is not allowed, or a number does not fit its type
template <class Number>
[[nodiscard]] std::span<std::byte const> unpack(std::span<std::byte const> bytes, std::span<Number> numbers);

}  // namespace headway::kernels
