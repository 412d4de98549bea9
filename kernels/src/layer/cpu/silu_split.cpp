// SPDX-License-Identifier: Apache-2.0

// Split of rows into parts with SiLU on some of them, on the CPU: the projection of an HSTU layer makes u, v, q and k
// in one product, and this pass separates them.
//
// Example: parts of 2 and 3 columns, only the first activated. Row 1 2 3 4 5 gives silu(1) silu(2) and 3 4 5.

#include "headway/kernels/silu_split.hpp"

#include "layer/cpu/row_buffers.hpp"
#include "layer/expect_arguments.hpp"

namespace headway::kernels {

namespace {

using hstu::AlignedBuffer;
using hstu::padded;

/// Calls visit(part, first column of the part, offset of its padded columns in a buffer for all parts).
template <class Pointer, class Visit>
void visit_parts(std::span<SplitPart<Pointer> const> parts, Visit const& visit) {
  std::int64_t first = 0, offset = 0;
  for (auto const& part : parts) {
    visit(part, first, offset);
    first += part.num_columns;
    offset += padded(part.num_columns);
  }
}

/// Size of a buffer for all parts, each padded.
template <class Pointer>
std::int64_t padded_columns(std::span<SplitPart<Pointer> const> parts) {
  std::int64_t sum = 0;
  for (auto const& part : parts) sum += padded(part.num_columns);
  return sum;
}

/// Splits rows: chunks of rows are independent.
template <class Real>
void run(SiluSplit const& args, Executor const& executor) {
  RowChunks const chunks(args.num_rows, columns_of(args.parts) * size_of(args.type));
  layer::RowAccess<Real> const access;
  executor(chunks.count(), [&](std::int64_t chunk) {
    AlignedBuffer<Real> const buffer(padded_columns(args.parts));
    Range const rows = chunks.rows(chunk);
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
      visit_parts(args.parts, [&](SplitPart<void*> const& part, std::int64_t first, std::int64_t offset) {
        Real* const values = buffer.data() + offset;
        access.load(args.type, args.x, row, first, part.num_columns, values);
        if (part.is_activated) access.rows.activate(padded(part.num_columns), values);
        access.store(args.type, values, part.rows, row, 0, part.num_columns);
      });
    }
  });
}

/// Joins gradients; each piece of rows has column sums of its own, which are added up in order.
template <class Real>
void run_backward(SiluSplitBackward const& args, Executor const& executor) {
  std::int64_t const num_columns = columns_of(args.grad_parts), size = padded_columns(args.grad_parts);
  layer::RowPieces const pieces(args.num_rows, num_columns * size_of(args.type));
  AlignedBuffer<Real> const all_sums(std::max<std::int64_t>(pieces.count(), 1) * size);
  layer::RowAccess<Real> const access;
  StridedRows<void*> const grad_x{.data = args.grad_x, .stride = num_columns};
  executor(pieces.count(), [&](std::int64_t piece) {
    AlignedBuffer<Real> const grads(size), x(size);
    Real* const sums = all_sums.data() + piece * size;
    Range const rows = pieces.rows(piece);
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
      visit_parts(args.grad_parts, [&](SplitPart<void const*> const& part, std::int64_t first, std::int64_t offset) {
        Real* const grad = grads.data() + offset;
        access.load(args.type, part.rows, row, 0, part.num_columns, grad);
        if (part.is_activated) {
          access.load(args.type, args.x, row, first, part.num_columns, x.data());
          access.rows.activate_backward(padded(part.num_columns), x.data(), grad);
        }
        access.rows.add(padded(part.num_columns), grad, sums + offset);
        access.store(args.type, grad, grad_x, row, first, part.num_columns);
      });
    }
  });
  for (std::int64_t piece = 1; piece < pieces.count(); ++piece) {
    access.rows.add(size, all_sums.data() + piece * size, all_sums.data());
  }
  visit_parts(args.grad_parts, [&](SplitPart<void const*> const& part, std::int64_t first, std::int64_t offset) {
    access.store(real_type(args.type), all_sums.data() + offset, {.data = args.column_sums}, 0, first,
                 part.num_columns);
  });
}

}  // namespace

void silu_split(SiluSplit const& args, Executor const& executor) {
  expect_parts(args.parts);
  layer::with_real(args.type, [&]<class Real>() { run<Real>(args, executor); });
}

void silu_split_backward(SiluSplitBackward const& args, Executor const& executor) {
  expect_parts(args.grad_parts);
  layer::with_real(args.type, [&]<class Real>() { run_backward<Real>(args, executor); });
}

}  // namespace headway::kernels
