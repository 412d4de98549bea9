// SPDX-License-Identifier: Apache-2.0

// Numbers in as few bits as they need ("frame of reference").
//
// Idea: store the smallest number, and for each number its difference from it, in as many bits as the largest
// difference has. Differences lie one after the other, lowest bit first.
//
// Example: 100, 103, 101. The minimum is 100, the differences 0, 3, 1 have 2 bits each: 0b01'11'00, one byte.
//
// Invariants: no difference has 57 to 63 bits, but 64 then. So a difference lies within the 8 bytes from the byte of
// its first bit, and one load gets it. Nothing is read or written outside of the arrays. Complexity: one pass; about a
// nanosecond for each number.

#include "headway/kernels/packed_numbers.hpp"

#include "headway/base/status.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

namespace headway::kernels {

namespace {

static_assert(std::endian::native == std::endian::little, "differences lie in the lowest bits of a loaded word");

constexpr unsigned kMostShifted = 56, kWhole = 64;

constexpr unsigned width_of(std::uint64_t most) {
  auto const width = static_cast<unsigned>(std::bit_width(most));
  return width > kMostShifted ? kWhole : width;
}

constexpr std::uint64_t mask_of(unsigned width) {
  return width == kWhole ? ~std::uint64_t{0} : (std::uint64_t{1} << width) - 1;
}

/// Up to 8 bytes from `at` on; those behind the end are 0.
std::uint64_t load(std::span<std::byte const> bytes, std::size_t at) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes.data() + at, std::min(sizeof word, bytes.size() - at));
  return word;
}

}  // namespace

template <class Number>
Packing packing_of(std::span<Number const> numbers) {
  if (numbers.empty()) return {};
  Number least = numbers.front(), most = numbers.front();
  for (auto const number : numbers) {
    least = std::min(least, number);
    most = std::max(most, number);
  }
  auto const minimum = static_cast<std::uint64_t>(least);
  return {.minimum = minimum, .width = width_of(static_cast<std::uint64_t>(most) - minimum)};
}

Packing packing_up_to(std::uint64_t most) { return {.minimum = 0, .width = width_of(most)}; }

template <class Number>
void append_packed(std::span<Number const> numbers, Packing const& packing, std::vector<std::byte>& to) {
  auto const [minimum, width] = packing;
  std::size_t at = to.size();
  to.resize(at + packing.num_bytes(numbers.size()));
  to[at] = static_cast<std::byte>(width);
  std::memcpy(&to[at + 1], &minimum, sizeof minimum);
  at += Packing::kHeaderBytes;
  if (width == 0) return;
  std::uint64_t word = 0;  // Its lowest `used` bits have not been written.
  unsigned used = 0;
  for (auto const number : numbers) {
    std::uint64_t const difference = static_cast<std::uint64_t>(number) - minimum;
    word |= difference << used;
    used += width;
    if (used < 64) continue;
    std::memcpy(&to[at], &word, sizeof word);
    at += sizeof word;
    used -= 64;
    word = used == 0 ? 0 : difference >> (width - used);
  }
  if (used > 0) std::memcpy(&to[at], &word, (used + 7) / 8);
}

template <class Number>
std::span<std::byte const> unpack(std::span<std::byte const> bytes, std::span<Number> numbers) {
  base::expects(bytes.size() >= Packing::kHeaderBytes, "packed numbers are cut off");
  Packing packing{.width = static_cast<unsigned>(bytes[0])};
  std::memcpy(&packing.minimum, &bytes[1], sizeof packing.minimum);
  auto const minimum = packing.minimum;  // A lambda cannot capture a structured binding in Clang 14.
  auto const width = packing.width;
  base::expects(width <= kMostShifted || width == kWhole, "packed numbers have a wrong width");
  base::expects(numbers.size() <= std::numeric_limits<std::size_t>::max() / 64, "there are too many packed numbers");
  std::size_t const size = packing.num_bytes(numbers.size());
  base::expects(bytes.size() >= size, "packed numbers are cut off");
  auto const data = bytes.first(size).subspan(Packing::kHeaderBytes);
  std::uint64_t const mask = mask_of(width);
  constexpr std::uint64_t kMost = std::numeric_limits<Number>::max();
  if constexpr (sizeof(Number) < sizeof minimum) {
    base::expects(minimum <= kMost && mask <= kMost, "a packed number is too large");
  }
  std::uint64_t most = 0;
  // All but the last differences have 8 bytes that can be loaded.
  std::size_t const num_fast =
      width == 0 || data.size() < 8 ? 0 : std::min(numbers.size(), (data.size() - 8) * 8 / width);
  auto const read = [&](std::size_t i, auto const& load_from) {
    std::size_t const bit = i * width;
    std::uint64_t const difference = load_from(bit / 8) >> (bit % 8) & mask;
    most = std::max(most, difference);
    numbers[i] = static_cast<Number>(minimum + difference);
  };
  for (std::size_t i = 0; i < num_fast; ++i) {
    read(i, [&](std::size_t at) {
      std::uint64_t word;
      std::memcpy(&word, data.data() + at, sizeof word);
      return word;
    });
  }
  for (std::size_t i = num_fast; i < numbers.size(); ++i) {
    read(i, [&](std::size_t at) { return width == 0 ? 0 : load(data, at); });
  }
  if constexpr (sizeof(Number) < sizeof minimum) {
    base::expects(numbers.empty() || minimum + most <= kMost, "a packed number is too large");
  }
  return bytes.subspan(size);
}

template Packing packing_of(std::span<std::int64_t const>);
template Packing packing_of(std::span<std::uint64_t const>);
template Packing packing_of(std::span<std::uint32_t const>);
template void append_packed(std::span<std::int64_t const>, Packing const&, std::vector<std::byte>&);
template void append_packed(std::span<std::uint64_t const>, Packing const&, std::vector<std::byte>&);
template void append_packed(std::span<std::uint32_t const>, Packing const&, std::vector<std::byte>&);
template std::span<std::byte const> unpack(std::span<std::byte const>, std::span<std::int64_t>);
template std::span<std::byte const> unpack(std::span<std::byte const>, std::span<std::uint64_t>);
template std::span<std::byte const> unpack(std::span<std::byte const>, std::span<std::uint32_t>);

}  // namespace headway::kernels
