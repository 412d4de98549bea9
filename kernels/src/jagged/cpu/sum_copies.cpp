// SPDX-License-Identifier: Apache-2.0

// Sums of copied rows on the CPU: the backward pass of copying jagged items (an item is the rows of one feature in one
// sample). A task has a chunk of the original rows and gathers their copies, in ascending order of the copied items,
// into a buffer in the accumulation type. So no two tasks add to the same row, and sums are rounded once.

#include "elements.hpp"
#include "headway/kernels/jagged_sums.hpp"
#include "jagged/copied_items.hpp"
#include "jagged/cpu/row_chunks.hpp"
#include "jagged/cpu/segment_checks.hpp"
#include "jagged/expect_sizes.hpp"

#include <vector>

namespace headway::kernels {

namespace {

/// Sums the copies of some rows of an item.
template <class Element>
void sum_part(CopiedItems const& items, CopiedRows const& rows, RowPart const& part,
              std::vector<Real<Element>>& memory) {
  std::int64_t const num_elements = part.rows.size() * rows.num_columns;
  memory.assign(static_cast<std::size_t>(num_elements), 0);
  auto* const sums = memory.data();
  for_each_copy(items, part.segment, [&](std::int64_t copy) {
    std::int64_t const row = items.copied_offsets[copy] + part.rows.begin - part.segment_begin;
    auto const* const copies = static_cast<Element const*>(rows.copies) + row * rows.num_columns;
    for (std::int64_t i = 0; i < num_elements; ++i) sums[i] += as_real(copies[i]);
  });
  auto* const out = static_cast<Element*>(rows.sums) + part.rows.begin * rows.num_columns;
  for (std::int64_t i = 0; i < num_elements; ++i) out[i] = nearest<Element>(sums[i]);
}

}  // namespace

void sum_copies(CopiedItems const& items, std::span<CopiedRows const> tensors, Executor const& executor) {
  expect_sizes(items);
  std::int64_t const num_items = items.num_features * items.num_samples;
  Segments const segments{.offsets = items.offsets, .num_items = num_items};
  expect_packed(segments, num_items, items.num_rows, executor);
  for (auto const& tensor : tensors) {
    RowChunks const chunks(items.num_rows, tensor.num_columns * size_of(tensor.type));
    executor(chunks.count(), [&](std::int64_t chunk) {
      with_element(tensor.type, [&]<class Element>() {
        std::vector<Real<Element>> memory;
        for_each_part(segments, num_items, chunks.rows(chunk),
                      [&](RowPart const& part) { sum_part<Element>(items, tensor, part, memory); });
      });
    });
  }
}

}  // namespace headway::kernels
