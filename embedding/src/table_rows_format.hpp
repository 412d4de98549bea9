// SPDX-License-Identifier: Apache-2.0

// Numbers and sizes of rows, shared by the CPU and the GPU.
//
// A row id has 31 bits: bit 30 is the precision, the others are the row's index in the store of that precision. Id 0
// is RowId::kNone. Example: id 5 is float32 row 5; id 2^30 + 5 is bfloat16 row 5. A key whose precision changes gets
// another id, which is why Table::generation() increases then.
//
// Stochastic rounding keeps small updates of bfloat16 rows alive. A weight of 1 has neighbours 1 - 2^-8 and 1 + 2^-7;
// an update of 2^-10 is lost by rounding to nearest, but moves the weight up once in eight steps at random. The
// random bits come from (key, column, step), so every run and every device rounds alike.

#pragma once

#include "bucket.hpp"
#include "headway/embedding/initial_values.hpp"
#include "headway/embedding/key.hpp"
#include "headway/embedding/table.hpp"
#include "headway/kernels/host_device.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace headway::embedding {

/// Precision of a row's embedding. Cold rows (fewer lookups than hot_count) have bfloat16, all others float32. The
/// optimizer state is float32 in both.
enum class Precision : std::uint8_t { kFloat32, kBfloat16 };

/// Number of row indices per precision: float32 rows have ids below it, bfloat16 rows have this added.
inline constexpr std::uint32_t kNumRowIds = std::uint32_t{1} << 30;
/// Most rows that may be in use. The 2^21 indices above are for chunks mapped ahead and for allocators' free rows.
inline constexpr std::size_t kMostTableRows = kNumRowIds - (std::size_t{1} << 21);

[[nodiscard]] constexpr Precision precision_of(RowId id) {
  return (static_cast<std::uint32_t>(id) & kNumRowIds) == 0 ? Precision::kFloat32 : Precision::kBfloat16;
}

/// Number of a row among the rows of its precision.
[[nodiscard]] constexpr std::uint32_t row_index(RowId id) { return static_cast<std::uint32_t>(id) % kNumRowIds; }

[[nodiscard]] constexpr RowId row_id(Precision precision, std::uint32_t index) {
  return RowId{index + static_cast<std::uint32_t>(precision) * kNumRowIds};
}

[[nodiscard]] constexpr std::size_t round_up(std::size_t size, std::size_t unit) {
  return (size + unit - 1) / unit * unit;
}

/// Bytes of a row with padding, a multiple of 16 or of 32. Short rows are not padded to a cache line of 64 bytes, or
/// bfloat16 would save nothing. Rows of up to 32 bytes never cross a cache line.
[[nodiscard]] constexpr std::size_t padded(std::size_t row_bytes) {
  constexpr std::size_t kLeastUnit = 16, kMostUnit = 32;
  std::size_t unit = kLeastUnit;
  while (unit < row_bytes && unit < kMostUnit) unit *= 2;
  return round_up(row_bytes, unit);
}

/// Row of a slot's word; kNone if the word holds no row.
[[nodiscard]] constexpr RowId row_of(RowWord word) {
  return is_row(word) ? RowId{static_cast<std::uint32_t>(word)} : RowId::kNone;
}

/// Columns per call of philox() in stochastic rounding: each takes 16 of its 128 bits.
inline constexpr std::uint32_t kColumnsPerRounding = 8;

/// Random words for the stochastic rounding of columns from kColumnsPerRounding * `block` on. The top bit of the
/// counter separates them from the words of initial values.
[[nodiscard]] constexpr std::array<std::uint32_t, 4> rounding_words(Key key, std::uint32_t block, std::uint64_t step) {
  constexpr std::uint32_t kOnlyForRounding = 1U << 31;
  return philox({static_cast<std::uint32_t>(key.id), static_cast<std::uint32_t>(key.id >> 32), key.table,
                 block | kOnlyForRounding},
                step);
}

/// Random bits of column `i` of the block.
[[nodiscard]] constexpr std::uint16_t rounding_bits(std::array<std::uint32_t, 4> const& words, std::uint32_t i) {
  return static_cast<std::uint16_t>(words[i / 2] >> (i % 2 * 16));
}

}  // namespace headway::embedding
