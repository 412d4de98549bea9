#pragma once

#include "bucket.hpp"
#include "headway/embedding/key.hpp"
#include "headway/embedding/philox.hpp"
#include "headway/embedding/table.hpp"
#include "headway/kernels/host_device.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace headway::embedding {

/// Cold rows have their vector in bfloat16, all others in float32; what belongs to the optimizer is float32 in both.
enum class Precision : std::uint8_t { kFloat32, kBfloat16 };

/// Numbers of rows of one precision; those of bfloat16 are further by so many.
inline constexpr std::uint32_t kNumRowIds = std::uint32_t{1} << 30;
/// That may be in use; the numbers between are those of chunks ahead, and of rows that an allocator has free.
inline constexpr std::size_t kMostTableRows = kNumRowIds - (std::size_t{1} << 21);

[[nodiscard]] constexpr Precision precision_of(RowId id) {
  return (static_cast<std::uint32_t>(id) & kNumRowIds) == 0 ? Precision::kFloat32 : Precision::kBfloat16;
}

/// Among those of its precision.
[[nodiscard]] constexpr std::uint32_t plain_number(RowId id) { return static_cast<std::uint32_t>(id) % kNumRowIds; }

[[nodiscard]] constexpr RowId row_id(Precision precision, std::uint32_t number) {
  return RowId{number + static_cast<std::uint32_t>(precision) * kNumRowIds};
}

[[nodiscard]] constexpr std::size_t round_up(std::size_t size, std::size_t unit) {
  return (size + unit - 1) / unit * unit;
}

/// Of what a row has. Short rows are not padded to a line of 64 bytes, or bfloat16 would save nothing; nor does any of
/// them lie in two.
[[nodiscard]] constexpr std::size_t padded(std::size_t row_bytes) {
  constexpr std::size_t kLeastUnit = 16, kMostUnit = 32;
  std::size_t unit = kLeastUnit;
  while (unit < row_bytes && unit < kMostUnit) unit *= 2;
  return round_up(row_bytes, unit);
}

/// kNone where the word names no row.
[[nodiscard]] constexpr RowId row_of(RowWord word) {
  return is_row(word) ? RowId{static_cast<std::uint32_t>(word)} : RowId::kNone;
}

/// Columns whose rounding at random takes one call of philox(): 16 bits each.
inline constexpr std::uint32_t kColumnsPerRounding = 8;

[[nodiscard]] constexpr std::array<std::uint32_t, 4> rounding_words(Key key, std::uint32_t block, std::uint64_t step) {
  constexpr std::uint32_t kOnlyForRounding = 1U << 31;
  return philox({static_cast<std::uint32_t>(key.id), static_cast<std::uint32_t>(key.id >> 32), key.table,
                 block | kOnlyForRounding},
                step);
}

/// For column `i` of the block.
[[nodiscard]] constexpr std::uint16_t rounding_bits(std::array<std::uint32_t, 4> const& words, std::uint32_t i) {
  return static_cast<std::uint16_t>(words[i / 2] >> (i % 2 * 16));
}

}  // namespace headway::embedding
