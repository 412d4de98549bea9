// SPDX-License-Identifier: Apache-2.0

// Normalisation and gating of rows on the CPU. Rows are loaded into buffers in the arithmetic type, computed by
// vector functions (simd/row_table.hpp), rounded once and stored. Sums over rows (gradients of weight and bias) are
// taken per piece of rows and then over pieces, in order, so they do not depend on the executor. An output row has one
// part or three side by side (GateForm). Statistics are the mean and 1 / deviation of each row.
//
// Example: 1,000 rows of 1 KiB are 8 pieces of 125 rows. Piece 0 has rows 0 to 124 and adds their weight gradients to
// sums of its own. When all pieces are done, one thread adds piece 1 to piece 0, then piece 2, and so on. With 3
// threads or 30, the same additions happen in the same order.
//
// Complexity: O(rows * columns); buffers of 5 rows per task, and for the backward pass two rows of sums per piece.

#include "headway/kernels/gated_norm.hpp"

#include "layer/cpu/row_buffers.hpp"
#include "layer/expect_arguments.hpp"

#include <optional>
#include <vector>

namespace headway::kernels {

namespace {

using hstu::AlignedBuffer;
using hstu::padded;

/// Weight and bias in the arithmetic type, shared by all rows. Converted once per call instead of once per row: weights
/// are often bfloat16, the arithmetic is float32.
template <class Real>
class ColumnWeights {
 public:
  explicit ColumnWeights(GatedNorm const& args) : weight_(load(args, args.weight)), bias_(load(args, args.bias)) {}
  [[nodiscard]] Real const* weight() const { return weight_ ? weight_->data() : nullptr; }
  [[nodiscard]] Real const* bias() const { return bias_ ? bias_->data() : nullptr; }

 private:
  static std::optional<AlignedBuffer<Real>> load(GatedNorm const& args, void const* values) {
    if (values == nullptr) return std::nullopt;
    AlignedBuffer<Real> buffer(padded(args.num_columns));
    layer::RowAccess<Real>{}.load(args.weight_type, {.data = values}, 0, 0, args.num_columns, buffer.data());
    return buffer;
  }
  std::optional<AlignedBuffer<Real>> weight_, bias_;
};

/// Buffers of one row in the arithmetic type, with the functions that fill and store them.
template <class Real>
class RowBuffers {
 public:
  RowBuffers(GatedNorm const& args, ColumnWeights<Real> const& weights)
      : args_(args), memory_(5 * padded(args.num_columns)) {
    std::int64_t const size = padded(args.num_columns);
    row = {.norm = args.norm,
           .form = args.form,
           .num_columns = args.num_columns,
           .eps = static_cast<Real>(args.eps),
           .weight = weights.weight(),
           .bias = weights.bias(),
           .x = memory_.data(),
           .gate = memory_.data() + size,
           .mean = 0,
           .inverse = 0,
           .parts = {memory_.data() + 2 * size, memory_.data() + 3 * size, memory_.data() + 4 * size},
           .weight_sums = nullptr,
           .bias_sums = nullptr};
  }

  /// Loads x, and the gate if there is one.
  void load_inputs(std::int64_t row_index) {
    access_.load(args_.type, args_.x, row_index, 0, args_.num_columns, row.x);
    if (args_.form != GateForm::kNone) access_.load(args_.type, args_.gate, row_index, 0, args_.num_columns, row.gate);
  }
  /// Writes all parts of an output row.
  void store_parts(std::int64_t row_index, void* out) {
    std::int64_t const columns = args_.num_columns, parts = num_parts(args_.form);
    for (std::int64_t part = 0; part < parts; ++part) {
      access_.store(args_.type, row.parts[part], {.data = out, .stride = parts * columns}, row_index, part * columns,
                    columns);
    }
  }
  /// Loads the gradient of all parts of an output row.
  void load_parts(std::int64_t row_index, StridedRows<void const*> const& grad_out) {
    std::int64_t const columns = args_.num_columns;
    for (std::int64_t part = 0; part < num_parts(args_.form); ++part) {
      access_.load(args_.type, grad_out, row_index, part * columns, columns, row.parts[part]);
    }
  }
  /// Adds the residual (a gradient of x from elsewhere, such as a skip connection) to the gradient of x. It overwrites
  /// the first part's buffer. The gradient of the output, which that buffer held, is no longer needed then.
  void add_to_x(std::int64_t row_index, StridedRows<void const*> const& residual) {
    access_.load(args_.type, residual, row_index, 0, args_.num_columns, row.parts[0]);
    access_.rows.add(padded(args_.num_columns), row.parts[0], row.x);
  }
  void store_columns(std::int64_t row_index, Real const* buffer, void* out) {
    access_.store(args_.type, buffer, {.data = out, .stride = args_.num_columns}, row_index, 0, args_.num_columns);
  }

  layer::NormRow<Real> row;
  void norm() { access_.rows.norm(row); }
  void norm_backward() { access_.rows.norm_backward(row); }

 private:
  GatedNorm const& args_;
  AlignedBuffer<Real> memory_;
  layer::RowAccess<Real> access_;
};

/// Bytes of an output row, by which rows are cut into chunks.
std::int64_t row_bytes(GatedNorm const& args) { return args.num_columns * num_parts(args.form) * size_of(args.type); }

/// Forward pass: chunks of rows are independent.
template <class Real>
void run(GatedNorm const& args, void* out, Real* statistics, Executor const& executor) {
  ColumnWeights<Real> const weights(args);
  RowChunks const chunks(args.num_rows, row_bytes(args));
  executor(chunks.count(), [&](std::int64_t chunk) {
    RowBuffers<Real> buffers(args, weights);
    Range const rows = chunks.rows(chunk);
    for (std::int64_t row_index = rows.begin; row_index < rows.end; ++row_index) {
      buffers.load_inputs(row_index);
      buffers.norm();
      buffers.store_parts(row_index, out);
      statistics[2 * row_index] = buffers.row.mean;
      statistics[2 * row_index + 1] = buffers.row.inverse;
    }
  });
}

/// Adds up the sums of all pieces in order, and writes them.
template <class Real>
void store_sums(GatedNorm const& args, Real* sums, std::int64_t num_pieces, void* out) {
  layer::RowAccess<Real> const access;
  std::int64_t const size = padded(args.num_columns);
  for (std::int64_t piece = 1; piece < num_pieces; ++piece) access.rows.add(size, sums + piece * size, sums);
  access.store(args.weight_type, sums, {.data = out}, 0, 0, args.num_columns);
}

/// Backward pass: each piece of rows has sums of its own for weight and bias; they are added up in order at the end, so
/// results do not depend on threads.
template <class Real>
void run_backward(GatedNormBackward const& args, Executor const& executor) {
  GatedNorm const& forward = args.forward;
  ColumnWeights<Real> const weights(forward);
  layer::RowPieces const pieces(forward.num_rows, row_bytes(forward));
  std::int64_t const size = padded(forward.num_columns), num_sums = std::max<std::int64_t>(pieces.count(), 1);
  AlignedBuffer<Real> const weight_sums(args.grad_weight == nullptr ? 0 : num_sums * size);
  AlignedBuffer<Real> const bias_sums(args.grad_bias == nullptr ? 0 : num_sums * size);
  auto const* const statistics = static_cast<Real const*>(args.statistics);
  executor(pieces.count(), [&](std::int64_t piece) {
    RowBuffers<Real> buffers(forward, weights);
    if (args.grad_weight != nullptr) buffers.row.weight_sums = weight_sums.data() + piece * size;
    if (args.grad_bias != nullptr) buffers.row.bias_sums = bias_sums.data() + piece * size;
    Range const rows = pieces.rows(piece);
    for (std::int64_t row_index = rows.begin; row_index < rows.end; ++row_index) {
      buffers.load_inputs(row_index);
      buffers.load_parts(row_index, args.grad_out);
      buffers.row.mean = statistics[2 * row_index];
      buffers.row.inverse = statistics[2 * row_index + 1];
      buffers.norm_backward();
      if (args.residual.data != nullptr) buffers.add_to_x(row_index, args.residual);
      buffers.store_columns(row_index, buffers.row.x, args.grad_x);
      if (args.grad_gate != nullptr) buffers.store_columns(row_index, buffers.row.gate, args.grad_gate);
    }
  });
  if (args.grad_weight != nullptr) store_sums(forward, weight_sums.data(), num_sums, args.grad_weight);
  if (args.grad_bias != nullptr) store_sums(forward, bias_sums.data(), num_sums, args.grad_bias);
}

}  // namespace

void gated_norm(GatedNorm const& args, void* out, void* statistics, Executor const& executor) {
  expect_arguments(args);
  layer::with_real(args.type, [&]<class Real>() { run(args, out, static_cast<Real*>(statistics), executor); });
}

void gated_norm_backward(GatedNormBackward const& args, Executor const& executor) {
  expect_arguments(args.forward);
  layer::with_real(args.forward.type, [&]<class Real>() { run_backward<Real>(args, executor); });
}

}  // namespace headway::kernels
