// SPDX-License-Identifier: Apache-2.0

// Rows of floats as float16 with an exponent for each block of up to 64 values.
//
// Idea: float16 has 11 significant bits, but exponents of 40 powers of two only, and gradients are often smaller than
// all of them. So a block is scaled by a power of two, which rounds nothing, until its largest magnitude lies in
// [2^14, 2^15). A byte keeps the exponent of that magnitude: the exponent field of the float, 8 bits.
//
// Example: the block 3, -0.5. The largest magnitude is 3 = 1.5 * 2^1, with exponent field 128. The scale is 2^13, and
// the halves are those of 24576 and -4096.
//
// Special blocks:
//   zeros            exponent 0, and halves of 0 with their signs.
//   subnormals       a block whose largest magnitude is below 2^-126 has exponent 0, and is scaled by 2^140, as one of
//                    2^-126. Its largest magnitude lies below 2^14. No precision is lost: the smallest float, 2^-149,
//                    becomes 2^-9.
//   infinity, NaN    they become those of float16. The exponent is that of the largest finite magnitude.
//   2^127 and above  what would round to 2^128 becomes the largest half below it, so finite numbers stay finite.
//
// Invariants: no exponent is 255. Each bit of the result is determined; only NaNs may differ between processors.
// Threads that flush subnormal numbers (DAZ) may lose those of float32.
// Complexity: one pass; 2 bytes for each value, and 1 for each block: 1.98 times less than float32 for 64 columns.
// Source: Lian et al., Persia (arXiv 2111.05897), section 4.2.3, which scales by a number that rounds.

#include "headway/kernels/half_blocks.hpp"

#include "codec/instruction_sets.hpp"
#include "headway/base/status.hpp"
#include "headway/kernels/instruction_set.hpp"

#include <algorithm>
#include <vector>

namespace headway::kernels {

namespace {

std::vector<HalfBlockKernels> find_usable() {
  std::vector<HalfBlockKernels> usable{codec::baseline_half_block_kernels()};
#if defined(__x86_64__)
  if (has_avx2() && has_f16c()) usable.push_back(codec::avx2_half_block_kernels());
  if (has_avx512()) usable.push_back(codec::avx512_half_block_kernels());
#endif
  return usable;
}

void expect_sizes(std::size_t num_values, std::size_t dim, std::size_t num_halves, std::size_t num_exponents) {
  base::expects(dim > 0 && num_values % dim == 0, "half blocks: values are not rows of the dim");
  base::expects(num_halves == num_values && num_exponents == num_values / dim * half_blocks(dim),
                "half blocks: a wrong number of halves or exponents");
}

/// Calls `use` with the first value, size and index of each block.
template <class Use>
void for_each_block(std::size_t num_values, std::size_t dim, Use const& use) {
  std::size_t block = 0;
  for (std::size_t row = 0; row < num_values; row += dim) {
    for (std::size_t column = 0; column < dim; column += kHalfBlock, ++block) {
      use(row + column, std::min(kHalfBlock, dim - column), block);
    }
  }
}

}  // namespace

std::span<HalfBlockKernels const> usable_half_block_kernels() {
  static std::vector<HalfBlockKernels> const usable = find_usable();
  return usable;
}

void encode_half_blocks(std::span<float const> rows, std::size_t dim, std::span<std::uint16_t> halves,
                        std::span<std::uint8_t> exponents) {
  expect_sizes(rows.size(), dim, halves.size(), exponents.size());
  auto const& kernels = usable_half_block_kernels().back();
  for_each_block(rows.size(), dim, [&](std::size_t first, std::size_t count, std::size_t block) {
    exponents[block] = kernels.encode(rows.data() + first, count, halves.data() + first);
  });
}

void decode_half_blocks(std::span<std::uint16_t const> halves, std::span<std::uint8_t const> exponents, std::size_t dim,
                        std::span<float> rows) {
  expect_sizes(rows.size(), dim, halves.size(), exponents.size());
  constexpr std::uint8_t kNone = 255;
  base::expects(std::ranges::find(exponents, kNone) == exponents.end(), "half blocks: an exponent is 255");
  auto const& kernels = usable_half_block_kernels().back();
  for_each_block(rows.size(), dim, [&](std::size_t first, std::size_t count, std::size_t block) {
    kernels.decode(halves.data() + first, exponents[block], count, rows.data() + first);
  });
}

}  // namespace headway::kernels
