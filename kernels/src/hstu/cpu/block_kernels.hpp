// SPDX-License-Identifier: Apache-2.0

// Interface between the passes on the CPU and their inner loops, which exist once per instruction set (simd/).
//
// All loops work on blocks of at most 64 queries and 64 keys: 16 KiB of scores in float32, so that a block with its
// operands stays in the L1 and L2 caches of a core.

#pragma once

#include "headway/kernels/hstu_attention.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace headway::kernels::hstu {

/// Largest number of queries, and of keys, in a block.
inline constexpr std::int64_t kBlockSize = 64;

/// Columns that a row of a block has room for: whole vectors of every instruction set.
[[nodiscard]] constexpr std::int64_t padded(std::int64_t columns) { return (columns + 15) / 16 * 16; }

/// Blocks have room for a multiple of this number of rows. Rows behind the last one may hold anything.
inline constexpr std::int64_t kRowStep = 8;

/// Two bfloat16 numbers that are neighbours along the summed index of a product; the first is in the lower half. An odd
/// number of them is padded with zero. AVX512_BF16 multiplies such pairs and accumulates in float32.
struct Bfloat16Pair {
  std::uint32_t bits;
};

/// Accumulation type of products of elements.
template <class Element>
using SumOf = std::conditional_t<std::is_same_v<Element, Bfloat16Pair>, float, Element>;

/// Is an element a single number? If so, an operand has the same layout whichever of its indices is summed.
template <class Element>
inline constexpr bool kIsSingle = std::is_same_v<Element, SumOf<Element>>;

/// Number of elements that hold `numbers` numbers along the summed index.
template <class Element>
[[nodiscard]] constexpr std::int64_t depth_of(std::int64_t numbers) {
  return kIsSingle<Element> ? numbers : (numbers + 1) / 2;
}

/// Store or accumulate the result of a product?
enum class Into : std::uint8_t { kReplace, kAdd };

/// Matrix in memory with contiguous rows, `stride` elements apart.
template <class Real>
struct Rows {
  Real* data;
  std::int64_t stride;
};

/// Matrix with any strides.
template <class Element>
struct OperandA {
  Element const* data;
  std::int64_t row_stride, column_stride = 1;

  [[nodiscard]] OperandA transposed() const { return {data, column_stride, row_stride}; }
};

/// Arguments of gemm: c = a b, or c += a b. Rows of `b` and `c` have room for padded(columns) elements. `a` and `c`
/// have room for a multiple of kRowStep rows.
template <class Element>
struct GemmArgs {
  std::int64_t rows, columns, depth;
  OperandA<Element> a;     ///< (rows, depth)
  Rows<Element const> b;   ///< (depth, columns)
  Rows<SumOf<Element>> c;  ///< (rows, columns)
  Into into = Into::kReplace;
};

/// Integer as wide as an element, so that vectors of both have equally many lanes.
template <class Real>
using MaskIndex = std::conditional_t<sizeof(Real) == 4, std::int32_t, std::int64_t>;

/// Keys that each query of a block sees: [begin, end) and its own token (HstuSequenceMask::keys_seen_by).
template <class Real>
struct SeenKeys {
  alignas(64) MaskIndex<Real> begin[kBlockSize], end[kBlockSize], self[kBlockSize];
};

/// Block of scores: keys are rows, queries are columns, rows are kBlockSize apart.
template <class Real>
struct ScoreBlock {
  std::int64_t num_keys, num_queries;
  /// Scores when compute_p() begins, weights when it ends.
  Real* s;
  Real const* bias;            ///< Shape of the scores; may be null.
  SeenKeys<Real> const* seen;  ///< Null if every pair is visible.
  MaskIndex<Real> first_key;   ///< Index of the first row's key in its sequence.
  Real alpha, scale;
};

/// Rows of elements in memory of the caller.
template <class Pointer>
struct ElementRows {
  Pointer data;
  ElementType type;
  std::int64_t stride, rows, columns;
};

/// Rows of one head, of tokens [first, first + size).
template <class Pointer>
[[nodiscard]] ElementRows<Pointer> rows_of(JaggedHeads<Pointer> const& heads, ElementType type, std::int64_t head,
                                           std::int64_t first, std::int64_t size, std::int64_t columns) {
  using Byte = std::conditional_t<std::is_same_v<Pointer, void*>, std::byte, std::byte const>;
  std::int64_t const offset = first * heads.token_stride + head * heads.head_stride;
  return {.data = static_cast<Byte*>(heads.data) + offset * size_of(type),
          .type = type,
          .stride = heads.token_stride,
          .rows = size,
          .columns = columns};
}

/// Functions on blocks, compiled per instruction set and operand type.
template <class Element>
struct BlockKernels {
  using Real = SumOf<Element>;

  char const* instruction_set;
  void (*gemm)(GemmArgs<Element> const&);
  /// s = SiLU(alpha * (s + bias)) * scale, zero where not seen: the weights P of the attention.
  void (*compute_p)(ScoreBlock<Real> const&);
  /// Same as compute_p(); then replaces dP in `gradients`, the gradient of those weights, by dS, the gradient of the
  /// scores, including the factors alpha and scale.
  void (*compute_p_and_ds)(ScoreBlock<Real> const&, Real* gradients);
  /// Converts rows into a block whose rows are `stride` apart, and fills columns up to padded(columns) with zeros. The
  /// summed index is that of columns.
  void (*load)(ElementRows<void const*> const& source, Element* block, std::int64_t stride);
  /// Same, for an operand whose summed index is that of rows.
  void (*load_deep)(ElementRows<void const*> const& source, Element* block, std::int64_t stride);
  /// Rounds a block to the element type and writes it to rows.
  void (*store)(Real const* block, std::int64_t stride, ElementRows<void*> const& destination);
  /// transposed(column, row) = block(row, column).
  void (*transpose)(Element const* block, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                    Element* transposed, std::int64_t transposed_stride);
  /// Rounds a block for a product that sums over its rows: pairs (rows / 2, kBlockSize). Rows of the block are
  /// kBlockSize apart. Null if elements are single numbers; so is pair_columns.
  void (*pair_rows)(Real const* block, std::int64_t rows, std::int64_t columns, Element* pairs) = nullptr;
  /// Same, for a product that sums over its columns: pairs (rows, kBlockSize / 2).
  void (*pair_columns)(Real const* block, std::int64_t rows, std::int64_t columns, Element* pairs) = nullptr;
};

/// Instruction sets that this processor supports, the fastest last. For pairs there may be none.
template <class Element>
[[nodiscard]] std::span<BlockKernels<Element> const> usable_block_kernels();

}  // namespace headway::kernels::hstu
