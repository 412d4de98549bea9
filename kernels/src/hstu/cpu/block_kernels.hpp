#pragma once

#include "headway/kernels/hstu_attention.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace headway::kernels::hstu {

/// Most queries and keys of a block.
inline constexpr std::int64_t kBlockSize = 64;

/// Columns that a row of a block has room for: whole vectors of each instruction set.
[[nodiscard]] constexpr std::int64_t padded(std::int64_t columns) { return (columns + 15) / 16 * 16; }

/// Blocks have room for rows in such steps; what lies in rows behind the last one does not count.
inline constexpr std::int64_t kRowStep = 8;

/// Two neighbours along the depth of a product, the first in the lower bits; behind the last number is a zero. There
/// are processors that multiply such pairs, with sums in float32.
struct Bfloat16Pair {
  std::uint32_t bits;
};

/// What sums of products of elements are in.
template <class Element>
using SumOf = std::conditional_t<std::is_same_v<Element, Bfloat16Pair>, float, Element>;

/// Whether elements are the numbers themselves, so that a factor lies the same way whatever its depth is.
template <class Element>
inline constexpr bool kIsSingle = std::is_same_v<Element, SumOf<Element>>;

/// Elements of so many numbers along the depth.
template <class Element>
[[nodiscard]] constexpr std::int64_t depth_of(std::int64_t numbers) {
  return kIsSingle<Element> ? numbers : (numbers + 1) / 2;
}

enum class Into : std::uint8_t { kReplace, kAdd };

/// A matrix in memory, whose rows are `stride` apart.
template <class Real>
struct Rows {
  Real* data;
  std::int64_t stride;
};

/// A matrix whose elements may lie in any regular way.
template <class Element>
struct Factor {
  Element const* data;
  std::int64_t row_stride, column_stride = 1;

  [[nodiscard]] Factor transposed() const { return {data, column_stride, row_stride}; }
};

/// c = a b, or c += a b. Rows of `b` and `c` have room for padded(columns), `a` and `c` for a multiple of kRowStep
/// rows.
template <class Element>
struct Product {
  std::int64_t rows, columns, depth;
  Factor<Element> a;       ///< (rows, depth)
  Rows<Element const> b;   ///< (depth, columns)
  Rows<SumOf<Element>> c;  ///< (rows, columns)
  Into into = Into::kReplace;
};

/// An integer as wide as an element, so that comparisons of both fill vectors alike.
template <class Real>
using MaskIndex = std::conditional_t<sizeof(Real) == 4, std::int32_t, std::int64_t>;

/// The keys that each query of a block sees: [begin, end) and itself (HstuSequenceMask::keys_seen_by).
template <class Real>
struct SeenKeys {
  alignas(64) MaskIndex<Real> begin[kBlockSize], end[kBlockSize], self[kBlockSize];
};

/// Products of the keys (rows) and queries (columns) of a block, rows kBlockSize apart.
template <class Real>
struct ScoreBlock {
  std::int64_t num_keys, num_queries;
  Real* scores;
  Real const* bias;            ///< Of the shape of the scores; may be null.
  SeenKeys<Real> const* seen;  ///< Null where everything is.
  MaskIndex<Real> first_key;
  Real alpha, scale;
};

/// Rows of elements in memory of the caller.
template <class Pointer>
struct ElementRows {
  Pointer data;
  ElementType type;
  std::int64_t stride, rows, columns;
};

/// Those of a head, of tokens [first, first + size).
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

/// What is done with blocks, compiled for an instruction set that multiplies such elements.
template <class Element>
struct BlockKernels {
  using Real = SumOf<Element>;

  char const* instruction_set;
  void (*multiply)(Product<Element> const&);
  /// scores = SiLU(alpha * (scores + bias)) * scale, zero where not seen.
  void (*weigh)(ScoreBlock<Real> const&);
  /// The same, and then gradients of weights become those of scores before alpha and bias.
  void (*weigh_with_gradient)(ScoreBlock<Real> const&, Real* gradients);
  /// Reads rows into a block whose rows are `stride` apart; up to padded(columns) they are filled with zeros. The depth
  /// is that of columns.
  void (*load)(ElementRows<void const*> const& source, Element* block, std::int64_t stride);
  /// The same where the depth is that of rows.
  void (*load_deep)(ElementRows<void const*> const& source, Element* block, std::int64_t stride);
  void (*store)(Real const* block, std::int64_t stride, ElementRows<void*> const& destination);
  /// transposed(column, row) = block(row, column); rows of both are that far apart.
  void (*transpose)(Element const* block, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                    Element* transposed, std::int64_t transposed_stride);
  /// Rounds a block for a product whose depth is that of its rows: pairs (rows / 2, kBlockSize). Rows of the block are
  /// kBlockSize apart. Null where elements are single, as the next.
  void (*pair_rows)(Real const* block, std::int64_t rows, std::int64_t columns, Element* pairs) = nullptr;
  /// The same where the depth is that of columns: pairs (rows, kBlockSize / 2).
  void (*pair_columns)(Real const* block, std::int64_t rows, std::int64_t columns, Element* pairs) = nullptr;
};

/// Those that this processor can run, the fastest last; for pairs there may be none.
template <class Element>
[[nodiscard]] std::span<BlockKernels<Element> const> usable_block_kernels();

}  // namespace headway::kernels::hstu
