// SPDX-License-Identifier: Apache-2.0

// Rows in registers, for both passes of gated normalisation: how threads share a row, and which packs each one keeps.
//
// Example: float32, 1,024 columns: 256 packs of 4 floats. More than 128 packs are too many for a warp with 4 packs
// per lane, so the 256 threads of a block share the row and have one pack each. With 100 columns, 25 packs fit a
// warp.
//
// Choice by the number of 16-byte packs: up to 64, a warp with 2 packs per lane; up to 128, a warp with 4; up to
// 1,024, a block with 4 per thread; beyond, a block that reads the row again for each pass. Rows that are not aligned
// take packs of one element.
//
// Invariants: a row's sum is the same in all its threads, bit by bit: a butterfly of shuffles within each warp, then
// the warps' sums in order.

#pragma once

#include "headway/kernels/gated_norm.hpp"
#include "layer/cuda/element_pack.cuh"

#include <algorithm>

namespace headway::kernels {

inline constexpr int kNormThreads = 256;  ///< Threads per block.

/// Compile-time configuration: element type, form, and how threads share rows. `kThreads` threads have a row; each has
/// every kThreads-th pack of `kSize` elements and keeps `kPacks` of them in registers. With kPacks = 0, rows have any
/// width and are read again for each pass.
template <class ElementType_, GateForm kForm_, int kSize_, int kThreads_, int kPacks_>
struct NormShape {
  using Element = ElementType_;
  using Number = Real<Element>;
  using Pack = ElementPack<Element, kSize_>;
  using Values = typename Pack::Values;
  static constexpr GateForm kForm = kForm_;
  static constexpr bool kHasGate = kForm != GateForm::kNone, kHasParts = num_parts(kForm) > 1;
  static constexpr int kSize = kSize_, kThreads = kThreads_, kPacks = kPacks_;
  static constexpr int kRows = kNormThreads / kThreads;  ///< Rows per block.

  /// Index of the thread among those of its row.
  __device__ static int thread() { return static_cast<int>(threadIdx.x) % kThreads; }

  /// Calls visit(i, pack) for the packs of this thread, i below kPacks.
  template <class Visit>
  __device__ static void for_each_pack(std::int64_t num_columns, Visit const& visit) {
    int const num_packs = static_cast<int>(num_columns / kSize);
    if constexpr (kPacks > 0) {
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
        int const pack = thread() + i * kThreads;
        if (pack < num_packs) visit(i, pack);
      }
    } else {
      for (int pack = thread(); pack < num_packs; pack += kThreads) visit(0, pack);
    }
  }

  /// Sum over the threads of a row; all of them get the same bits.
  __device__ static Number sum(Number value) {
#pragma unroll
    for (int bits = kWarpThreads / 2; bits > 0; bits /= 2) value += __shfl_xor_sync(kAllLanes, value, bits);
    if constexpr (kThreads > kWarpThreads) {
      constexpr int kWarps = kThreads / kWarpThreads;
      // The first barrier keeps a second call from overwriting sums that a slow warp still reads.
      __shared__ Number of_warps[kWarps];
      __syncthreads();
      if (threadIdx.x % kWarpThreads == 0) of_warps[threadIdx.x / kWarpThreads] = value;
      __syncthreads();
      value = of_warps[0];
#pragma unroll
      for (int warp = 1; warp < kWarps; ++warp) value += of_warps[warp];
    }
    return value;
  }
};

/// Packs of a row that belong to a thread.
template <class Shape>
struct RowPacks {
  typename Shape::Element const* row = nullptr;
  typename Shape::Pack kept[Shape::kPacks > 0 ? Shape::kPacks : 1];

  __device__ void load(StridedRows<typename Shape::Element const*> const& rows, std::int64_t row_index,
                       std::int64_t first_column, std::int64_t num_columns) {
    row = rows.data + row_index * rows.stride + first_column;
    if constexpr (Shape::kPacks > 0) {
      Shape::for_each_pack(num_columns,
                           [&](int i, int pack) { kept[i] = Shape::Pack::load(row + pack * Shape::kSize); });
    }
  }
  __device__ void read(int i, int pack, typename Shape::Values& values) const {
    if constexpr (Shape::kPacks > 0) {
      kept[i].read(values);
    } else {
      Shape::Pack::load(row + pack * Shape::kSize).read(values);
    }
  }
};

/// Weight or bias of columns, as elements or in the arithmetic type.
template <class Shape>
struct ColumnValues {
  void const* data = nullptr;  ///< Null: there is none.
  bool is_numbers = false;     ///< Is it in the arithmetic type, not in that of elements?

  /// Reads a pack of values; all are `other` if there are no data.
  __device__ void read_or(typename Shape::Number other, int pack, typename Shape::Values& values) const {
    using Number = typename Shape::Number;
    if (data == nullptr) {
#pragma unroll
      for (auto& value : values) value = other;
      return;
    }
    if (!is_numbers) {
      Shape::Pack::load(static_cast<typename Shape::Element const*>(data) + pack * Shape::kSize).read(values);
      return;
    }
    constexpr int kTogether = Shape::kSize < kPackSize<Number> ? Shape::kSize : kPackSize<Number>;
    using Numbers = ElementPack<Number, kTogether>;
    Number const* const from = static_cast<Number const*>(data) + pack * Shape::kSize;
#pragma unroll
    for (int j = 0; j < Shape::kSize; j += kTogether) {
      typename Numbers::Values some;
      Numbers::load(from + j).read(some);
#pragma unroll
      for (int k = 0; k < kTogether; ++k) values[j + k] = some[k];
    }
  }
};

/// GatedNorm in the types of a kernel.
template <class Shape>
struct NormParams {
  using Rows = StridedRows<typename Shape::Element const*>;

  NormKind norm;
  typename Shape::Number eps;
  std::int64_t num_rows, num_columns;
  Rows x, gate;
  ColumnValues<Shape> weight, bias;

  explicit NormParams(GatedNorm const& args)
      : norm(args.norm),
        eps(static_cast<typename Shape::Number>(args.eps)),
        num_rows(args.num_rows),
        num_columns(args.num_columns),
        x(rows_of(args.x)),
        gate(rows_of(args.gate)),
        weight{args.weight, args.weight_type != args.type},
        bias{args.bias, args.weight_type != args.type} {}

  static Rows rows_of(StridedRows<void const*> const& rows) {
    return {static_cast<typename Shape::Element const*>(rows.data), rows.stride};
  }
};

/// Calls call.template operator()<Shape>() with the narrowest shape that fits the columns.
template <class Element, GateForm kForm, class Call>
void with_norm_shape_of(std::int64_t num_columns, bool is_packed, Call const& call) {
  if (!is_packed) {
    if (num_columns <= 128) return call.template operator()<NormShape<Element, kForm, 1, kWarpThreads, 4>>();
    return call.template operator()<NormShape<Element, kForm, 1, kNormThreads, 0>>();
  }
  constexpr int kSize = kPackSize<Element>;
  std::int64_t const num_packs = num_columns / kSize;
  if (num_packs <= 64) return call.template operator()<NormShape<Element, kForm, kSize, kWarpThreads, 2>>();
  if (num_packs <= 128) return call.template operator()<NormShape<Element, kForm, kSize, kWarpThreads, 4>>();
  if (num_packs <= 4 * kNormThreads) {
    return call.template operator()<NormShape<Element, kForm, kSize, kNormThreads, 4>>();
  }
  call.template operator()<NormShape<Element, kForm, kSize, kNormThreads, 0>>();
}

/// Chooses element type and form.
template <class Call>
void with_norm_shape(GatedNorm const& args, bool is_packed, Call const& call) {
  with_element(args.type, [&]<class Element>() {
    switch (args.form) {
      case GateForm::kNone:
        return with_norm_shape_of<Element, GateForm::kNone>(args.num_columns, is_packed, call);
      case GateForm::kNormThenGate:
        return with_norm_shape_of<Element, GateForm::kNormThenGate>(args.num_columns, is_packed, call);
      case GateForm::kGateThenNorm:
        return with_norm_shape_of<Element, GateForm::kGateThenNorm>(args.num_columns, is_packed, call);
      case GateForm::kConcat:
        return with_norm_shape_of<Element, GateForm::kConcat>(args.num_columns, is_packed, call);
      case GateForm::kConcatNorm:
        return with_norm_shape_of<Element, GateForm::kConcatNorm>(args.num_columns, is_packed, call);
    }
  });
}

}  // namespace headway::kernels
