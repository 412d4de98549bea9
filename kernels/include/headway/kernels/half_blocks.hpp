// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

// Rows of floats as float16 with an exponent for each block; half_blocks.cpp explains the format.

namespace headway::kernels {

/// Most values of a block. A row of `dim` values has half_blocks(dim) of them, and no block has values of two rows.
inline constexpr std::size_t kHalfBlock = 64;
[[nodiscard]] constexpr std::size_t half_blocks(std::size_t dim) { return (dim + kHalfBlock - 1) / kHalfBlock; }
/// Bytes of rows: 2 for a value, and 1 for a block.
[[nodiscard]] constexpr std::size_t half_bytes(std::size_t num_rows, std::size_t dim) {
  return num_rows * (dim * sizeof(std::uint16_t) + half_blocks(dim));
}

/// A relative error is at most 2^-11 for values of at least 2^-28 of the largest one of their block, and the error of
/// smaller ones is at most 2^-39 of it.
/// @param rows (rows, dim); @param halves (rows, dim); @param exponents (rows, half_blocks(dim))
/// @throws base::UsageError if the sizes do not fit; likewise below
void encode_half_blocks(std::span<float const> rows, std::size_t dim, std::span<std::uint16_t> halves,
                        std::span<std::uint8_t> exponents);

/// @throws base::UsageError also for an exponent that no block has
void decode_half_blocks(std::span<std::uint16_t const> halves, std::span<std::uint8_t const> exponents, std::size_t dim,
                        std::span<float> rows);

/// The same for blocks in memory, compiled per instruction set. All sets give the same bits, except those of NaNs.
struct HalfBlockKernels {
  char const* instruction_set;
  /// Encodes a block of up to kHalfBlock values. @returns its exponent
  std::uint8_t (*encode)(float const* values, std::size_t count, std::uint16_t* halves);
  void (*decode)(std::uint16_t const* halves, std::uint8_t exponent, std::size_t count, float* values);
};
/// Instruction sets that this processor supports, the fastest last.
[[nodiscard]] std::span<HalfBlockKernels const> usable_half_block_kernels();

}  // namespace headway::kernels
