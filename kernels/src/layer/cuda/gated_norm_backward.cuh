// SPDX-License-Identifier: Apache-2.0
#pragma once

// Gated normalisation on a device, backward.
//
// Idea: a persistent grid, whose blocks take rows in a grid-stride loop. A block keeps a row of x, gate and output
// gradients in registers. With g the gradient of the norm's output n, c = (z - mean) / deviation and h = g * weight, it
// computes
//   grad_z = (h - mean(h) - c * mean(h * c)) / deviation; for RMSNorm without mean(h).
// Gradients of weight (sum of g * c) and bias (sum of g) stay in registers over all rows of a block. At the end a block
// writes one partial sum per column; add_column_sums_kernel() adds these up.
//
// Example: 1,000 rows, 132 multiprocessors, a row per warp: 125 blocks of 8 rows. The 125 partials are added up by the
// second kernel.
//
// Invariants: the order of sums is fixed by the shape and the number of blocks, so results are bitwise reproducible on
// one device.
// Complexity: each row is read once (if it fits into registers) and its gradients are written once; scratch of 2
// numbers per block and column.

#include "layer/cuda/norm_rows.cuh"
#include "layer/cuda/silu.cuh"

namespace headway::kernels {

/// Kernel arguments.
template <class Shape>
struct GatedNormBackwardParams {
  NormParams<Shape> norm;
  typename Shape::Number const* statistics;  ///< (num_rows, 2): mean and 1 / deviation, from the forward pass.
  /// `residual`: gradient of the residual branch, which is added to grad_x; may be null.
  typename NormParams<Shape>::Rows grad_out, residual;
  typename Shape::Element *grad_x, *grad_gate;
  typename Shape::Number* partials;  ///< (blocks, 2, num_columns): sums for weight and bias; null if not wanted.
};

/// Row of a warp or block in registers, with the gradients of the output.
template <class Shape>
struct BackwardRow {
  using Number = typename Shape::Number;
  using Values = typename Shape::Values;

  NormParams<Shape> const& params;
  RowPacks<Shape> x, gate;
  /// Gradients of the output's parts. Forms with three have silu(gate), x or its norm n, and n * silu(gate); those with
  /// one have only `last`.
  RowPacks<Shape> first, middle, last;
  Number mean, inverse_deviation;

  __device__ BackwardRow(GatedNormBackwardParams<Shape> const& args, std::int64_t row)
      : params(args.norm), mean(args.statistics[2 * row]), inverse_deviation(args.statistics[2 * row + 1]) {
    std::int64_t const columns = params.num_columns;
    constexpr std::int64_t kParts = num_parts(Shape::kForm);
    x.load(params.x, row, 0, columns);
    if constexpr (Shape::kHasGate) gate.load(params.gate, row, 0, columns);
    last.load(args.grad_out, row, (kParts - 1) * columns, columns);
    if constexpr (Shape::kHasParts) {
      first.load(args.grad_out, row, 0, columns);
      middle.load(args.grad_out, row, columns, columns);
    }
  }
};

/// Values of one pack of a row from which its gradients are computed.
template <class Shape>
struct BackwardPack {
  using Values = typename Shape::Values;
  using Gate = Silu<typename Shape::Element>;

  Values x, gate, last;
  Values centred;      ///< (z - mean) / deviation, for the input z of the norm.
  Values grad_normed;  ///< Gradient of the norm's output.
  Values weight;

  __device__ BackwardPack(BackwardRow<Shape> const& row, int i, int pack) {
    constexpr GateForm kForm = Shape::kForm;
    // Read first: read_or() branches at run time, and values computed before a branch must be kept across it.
    row.params.weight.read_or(1, pack, weight);
    row.x.read(i, pack, x);
    row.last.read(i, pack, last);
    if constexpr (Shape::kHasGate) row.gate.read(i, pack, gate);
#pragma unroll
    for (int j = 0; j < Shape::kSize; ++j) {
      typename Shape::Number z = x[j];
      grad_normed[j] = last[j];
      if constexpr (kForm == GateForm::kGateThenNorm) {
        z *= Gate(gate[j]).value();
      } else if constexpr (Shape::kHasGate) {
        grad_normed[j] *= Gate(gate[j]).value();
      }
      centred[j] = (z - row.mean) * row.inverse_deviation;
    }
    if constexpr (kForm == GateForm::kConcatNorm) {
      Values middle;
      row.middle.read(i, pack, middle);
#pragma unroll
      for (int j = 0; j < Shape::kSize; ++j) grad_normed[j] += middle[j];
    }
  }
};

/// Sums of columns over the rows of a block: in registers, or for rows of any width in the block's partials, where each
/// thread has elements of its own.
template <class Shape>
struct BlockSums {
  using Number = typename Shape::Number;
  using Values = typename Shape::Values;
  static constexpr bool kAreKept = Shape::kPacks > 0;

  Number* partials;  ///< Partials of this block; null if no sums are wanted.
  std::int64_t num_columns;
  Values weight[kAreKept ? Shape::kPacks : 1] = {}, bias[kAreKept ? Shape::kPacks : 1] = {};

  __device__ BlockSums(Number* all, std::int64_t columns)
      : partials(all == nullptr ? nullptr : all + std::int64_t{blockIdx.x} * 2 * columns), num_columns(columns) {
    if constexpr (!kAreKept) {
      if (partials == nullptr) return;
      for (std::int64_t i = threadIdx.x; i < 2 * columns; i += kNormThreads) partials[i] = 0;
      __syncthreads();
    }
  }

  __device__ void add(int i, int pack, BackwardPack<Shape> const& at) {
    if constexpr (kAreKept) {
#pragma unroll
      for (int j = 0; j < Shape::kSize; ++j) {
        weight[i][j] += at.grad_normed[j] * at.centred[j];
        bias[i][j] += at.grad_normed[j];
      }
    } else if (partials != nullptr) {
#pragma unroll
      for (int j = 0; j < Shape::kSize; ++j) {
        partials[pack * Shape::kSize + j] += at.grad_normed[j] * at.centred[j];
        partials[num_columns + pack * Shape::kSize + j] += at.grad_normed[j];
      }
    }
  }

  /// Writes the sums to the partials. All threads of the block call it.
  __device__ void write() {
    if constexpr (kAreKept) {
      if (partials == nullptr) return;
      write(weight, partials);
      write(bias, partials + num_columns);
    }
  }

 private:
  /// Adds the sums of the block's rows in turn, through shared memory.
  __device__ void write(Values const (&sums)[kAreKept ? Shape::kPacks : 1], Number* out) {
    if constexpr (Shape::kRows == 1) {
      Shape::for_each_pack(num_columns, [&](int i, int pack) {
#pragma unroll
        for (int j = 0; j < Shape::kSize; ++j) out[pack * Shape::kSize + j] = sums[i][j];
      });
    } else {
      __shared__ Number joined[Shape::kPacks * Shape::kThreads * Shape::kSize];
      int const turn_of_row = static_cast<int>(threadIdx.x) / Shape::kThreads;
      for (int turn = 0; turn < Shape::kRows; ++turn) {
        if (turn == turn_of_row) {
          Shape::for_each_pack(num_columns, [&](int i, int pack) {
#pragma unroll
            for (int j = 0; j < Shape::kSize; ++j) {
              Number& sum = joined[pack * Shape::kSize + j];
              sum = turn == 0 ? sums[i][j] : sum + sums[i][j];
            }
          });
        }
        __syncthreads();
      }
      for (std::int64_t i = threadIdx.x; i < num_columns; i += kNormThreads) out[i] = joined[i];
      __syncthreads();
    }
  }
};

/// Kernel: a block takes rows in steps of the grid, so its sums cover many rows.
template <class Shape>
__global__ void __launch_bounds__(kNormThreads, Shape::kPacks > 2 ? 1 : 2)
    gated_norm_backward_kernel(__grid_constant__ GatedNormBackwardParams<Shape> const args) {
  using Number = typename Shape::Number;
  using Values = typename Shape::Values;
  using Pack = typename Shape::Pack;
  auto const& params = args.norm;
  std::int64_t const num_columns = params.num_columns;
  constexpr GateForm kForm = Shape::kForm;
  BlockSums<Shape> sums(args.partials, num_columns);
  std::int64_t const step = std::int64_t{gridDim.x} * Shape::kRows;
  std::int64_t row = std::int64_t{blockIdx.x} * Shape::kRows + threadIdx.x / Shape::kThreads;
  for (; row < params.num_rows; row += step) {
    BackwardRow<Shape> const loaded(args, row);
    RowPacks<Shape> residual;
    if (args.residual.data != nullptr) residual.load(args.residual, row, 0, num_columns);

    Number sum = 0, product_sum = 0;
    Shape::for_each_pack(num_columns, [&](int i, int pack) {
      BackwardPack<Shape> const at(loaded, i, pack);
      sums.add(i, pack, at);
#pragma unroll
      for (int j = 0; j < Shape::kSize; ++j) {
        sum += at.grad_normed[j] * at.weight[j];
        product_sum += at.grad_normed[j] * at.weight[j] * at.centred[j];
      }
    });
    Number const mean = params.norm == NormKind::kLayer ? Shape::sum(sum) / static_cast<Number>(num_columns) : 0;
    Number const product_mean = Shape::sum(product_sum) / static_cast<Number>(num_columns);

    Shape::for_each_pack(num_columns, [&](int i, int pack) {
      Values bias, grad_x, other;
      // The gate's gradient needs n = c * weight + bias. For kGateThenNorm the gate acts before the norm, so it does
      // not.
      if constexpr (Shape::kHasGate && kForm != GateForm::kGateThenNorm) params.bias.read_or(0, pack, bias);
      BackwardPack<Shape> const at(loaded, i, pack);
#pragma unroll
      for (int j = 0; j < Shape::kSize; ++j) {
        grad_x[j] = (at.grad_normed[j] * at.weight[j] - mean - at.centred[j] * product_mean) * loaded.inverse_deviation;
      }
      if constexpr (Shape::kHasGate) {
        Values grad_gate;
        if constexpr (kForm == GateForm::kGateThenNorm) {
#pragma unroll
          for (int j = 0; j < Shape::kSize; ++j) {
            grad_gate[j] = grad_x[j] * at.x[j];
            grad_x[j] *= Silu<typename Shape::Element>(at.gate[j]).value();
          }
        } else {
#pragma unroll
          for (int j = 0; j < Shape::kSize; ++j) {
            grad_gate[j] = at.last[j] * (at.centred[j] * at.weight[j] + bias[j]);
          }
          if constexpr (Shape::kHasParts) {
            loaded.first.read(i, pack, other);
#pragma unroll
            for (int j = 0; j < Shape::kSize; ++j) grad_gate[j] += other[j];
          }
        }
#pragma unroll
        for (int j = 0; j < Shape::kSize; ++j) grad_gate[j] *= Silu<typename Shape::Element>(at.gate[j]).slope();
        Pack::of(grad_gate).store(args.grad_gate + row * num_columns + pack * Shape::kSize);
      }
      if constexpr (kForm == GateForm::kConcat) {
        loaded.middle.read(i, pack, other);
#pragma unroll
        for (int j = 0; j < Shape::kSize; ++j) grad_x[j] += other[j];
      }
      if (args.residual.data != nullptr) {
        residual.read(i, pack, other);
#pragma unroll
        for (int j = 0; j < Shape::kSize; ++j) grad_x[j] += other[j];
      }
      Pack::of(grad_x).store(args.grad_x + row * num_columns + pack * Shape::kSize);
    });
  }
  sums.write();
}

/// Calls call.template operator()<Shape>(). The shape reads vectors if all pointers and strides of `args` are aligned
/// for them, else single elements.
template <class Call>
void with_norm_shape(GatedNormBackward const& args, Call const& call) {
  GatedNorm const& forward = args.forward;
  bool const is_packed = is_in_packs(
      forward.type,
      {forward.x.data, forward.gate.data, forward.weight, forward.bias, args.grad_out.data, args.residual.data,
       args.grad_x, args.grad_gate},
      {forward.num_columns, forward.x.stride, forward.gate.stride, args.grad_out.stride, args.residual.stride});
  with_norm_shape(forward, is_packed, call);
}

template <class Shape>
GatedNormBackwardParams<Shape> gated_norm_backward_params(GatedNormBackward const& args, void* partials) {
  bool const has_sums = args.grad_weight != nullptr || args.grad_bias != nullptr;
  return {.norm = NormParams<Shape>(args.forward),
          .statistics = static_cast<typename Shape::Number const*>(args.statistics),
          .grad_out = NormParams<Shape>::rows_of(args.grad_out),
          .residual = NormParams<Shape>::rows_of(args.residual),
          .grad_x = static_cast<typename Shape::Element*>(args.grad_x),
          .grad_gate = static_cast<typename Shape::Element*>(args.grad_gate),
          .partials = has_sums ? static_cast<typename Shape::Number*>(partials) : nullptr};
}

}  // namespace headway::kernels
