// SPDX-License-Identifier: Apache-2.0
#pragma once

// Gated normalisation on a device, forward (GatedNorm).
//
// Idea: a warp or a block of threads has one row. It loads the row once into registers as packs of 16 bytes, computes
// mean and deviation by shuffles, and writes all parts of the output. NormShape chooses threads per row and packs per
// thread; rows too wide for registers are read again for each pass.
//
// Example: bfloat16, 512 columns, forms with one part: 64 packs of 8 elements. A warp has the row, two packs per lane,
// and a block of 256 threads has 8 rows.
//
// Invariants: the variance is the mean of (z - mean)^2, computed after the mean. Sums over a row have one order.
// Complexity: x and the gate are read once (if they fit into registers), the output is written once. Two reductions per
// row (one for RMSNorm).

#include "layer/cuda/norm_rows.cuh"
#include "layer/cuda/silu.cuh"

namespace headway::kernels {

/// Kernel arguments.
template <class Shape>
struct GatedNormParams {
  NormParams<Shape> norm;
  typename Shape::Element* out;
  typename Shape::Number* statistics;  ///< (num_rows, 2): mean and 1 / deviation.
};

/// Kernel: one row per warp or block of threads. The return for rows beyond the end is safe before the sums: all
/// threads of a row have the same row index, and a block that shares one row returns as a whole.
template <class Shape>
__global__ void __launch_bounds__(kNormThreads) gated_norm_kernel(__grid_constant__ GatedNormParams<Shape> const args) {
  using Number = typename Shape::Number;
  using Values = typename Shape::Values;
  using Pack = typename Shape::Pack;
  auto const& params = args.norm;
  std::int64_t const row = std::int64_t{blockIdx.x} * Shape::kRows + threadIdx.x / Shape::kThreads;
  if (row >= params.num_rows) return;
  constexpr GateForm kForm = Shape::kForm;
  std::int64_t const num_columns = params.num_columns;
  RowPacks<Shape> x, gate;
  x.load(params.x, row, 0, num_columns);
  if constexpr (Shape::kHasGate) gate.load(params.gate, row, 0, num_columns);

  auto const read_gate = [&](int i, int pack, Values& s) {
    gate.read(i, pack, s);
#pragma unroll
    for (auto& each : s) each = Silu<typename Shape::Element>(each).value();
  };
  // Reads the input of the norm.
  auto const read_input = [&](int i, int pack, Values& z) {
    x.read(i, pack, z);
    if constexpr (kForm == GateForm::kGateThenNorm) {
      Values s;
      read_gate(i, pack, s);
#pragma unroll
      for (int j = 0; j < Shape::kSize; ++j) z[j] *= s[j];
    }
  };

  Number mean = 0, squares = 0;
  if (params.norm == NormKind::kLayer) {
    Number sum = 0;
    Shape::for_each_pack(num_columns, [&](int i, int pack) {
      Values z;
      read_input(i, pack, z);
#pragma unroll
      for (auto const each : z) sum += each;
    });
    mean = Shape::sum(sum) / static_cast<Number>(num_columns);
  }
  Shape::for_each_pack(num_columns, [&](int i, int pack) {
    Values z;
    read_input(i, pack, z);
#pragma unroll
    for (auto const each : z) squares += (each - mean) * (each - mean);
  });
  Number const inverse = 1 / std::sqrt(Shape::sum(squares) / static_cast<Number>(num_columns) + params.eps);
  if (Shape::thread() == 0) {
    args.statistics[2 * row] = mean;
    args.statistics[2 * row + 1] = inverse;
  }

  typename Shape::Element* const out = args.out + row * num_columns * num_parts(kForm);
  Shape::for_each_pack(num_columns, [&](int i, int pack) {
    typename Shape::Element* const first = out + pack * Shape::kSize;
    Values normed, weight, bias;
    params.weight.read_or(1, pack, weight);
    params.bias.read_or(0, pack, bias);
    read_input(i, pack, normed);
#pragma unroll
    for (int j = 0; j < Shape::kSize; ++j) normed[j] = (normed[j] - mean) * inverse * weight[j] + bias[j];
    if constexpr (kForm == GateForm::kNone || kForm == GateForm::kGateThenNorm) {
      Pack::of(normed).store(first);
    } else {
      if constexpr (kForm == GateForm::kConcatNorm) Pack::of(normed).store(first + num_columns);
      if constexpr (kForm == GateForm::kConcat) {
        Values middle;
        x.read(i, pack, middle);
        Pack::of(middle).store(first + num_columns);
      }
      Values s;
      read_gate(i, pack, s);
      if constexpr (Shape::kHasParts) Pack::of(s).store(first);
#pragma unroll
      for (int j = 0; j < Shape::kSize; ++j) normed[j] *= s[j];
      Pack::of(normed).store(first + (num_parts(kForm) - 1) * num_columns);
    }
  });
}

/// Calls call.template operator()<Shape>() with the shape for the memory of `args` and `out`.
template <class Call>
void with_norm_shape(GatedNorm const& args, void const* out, Call const& call) {
  bool const is_packed = is_in_packs(args.type, {args.x.data, args.gate.data, args.weight, args.bias, out},
                                     {args.num_columns, args.x.stride, args.gate.stride});
  with_norm_shape(args, is_packed, call);
}

template <class Shape>
GatedNormParams<Shape> gated_norm_params(GatedNorm const& args, void* out, void* statistics) {
  return {.norm = NormParams<Shape>(args),
          .out = static_cast<typename Shape::Element*>(out),
          .statistics = static_cast<typename Shape::Number*>(statistics)};
}

}  // namespace headway::kernels
