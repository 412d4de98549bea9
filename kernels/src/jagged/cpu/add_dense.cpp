// SPDX-License-Identifier: Apache-2.0

// Adds dense rows (positional embeddings) to jagged rows on the CPU. Packed rows are cut into chunks of about 128
// KiB, and a task adds segment by segment. Rows from max_length on have no dense row and are copied.
//
// Example: max_length 2, samples of 3 and 1 rows. Rows 0 and 1 get dense[0][0] and dense[0][1], row 2 is copied, row
// 3 gets dense[1][0].

#include "elements.hpp"
#include "headway/kernels/jagged_sums.hpp"
#include "jagged/cpu/row_chunks.hpp"
#include "jagged/cpu/segment_checks.hpp"
#include "jagged/expect_sizes.hpp"

#include <algorithm>
#include <cstring>

namespace headway::kernels {

namespace {

/// Adds dense rows to a part of a sample's rows; elements from `num_added` on are copied.
template <class Element>
void add_part(Element const* values, Element const* dense, std::int64_t num_added, std::int64_t num_elements,
              Element* out) {
  for (std::int64_t i = 0; i < num_added; ++i) out[i] = nearest<Element>(as_real(values[i]) + as_real(dense[i]));
  std::copy(values + num_added, values + num_elements, out + num_added);
}

}  // namespace

void add_dense(JaggedRows const& rows, void const* dense, std::int64_t max_length, void* out,
               Executor const& executor) {
  expect_sizes(rows);
  Segments const samples{.offsets = rows.offsets, .num_items = rows.num_samples};
  expect_packed(samples, rows.num_samples, rows.num_rows, executor);
  RowChunks const chunks(rows.num_rows, rows.num_columns * size_of(rows.type));
  std::int64_t const columns = rows.num_columns;
  executor(chunks.count(), [&](std::int64_t chunk) {
    for_each_part(samples, rows.num_samples, chunks.rows(chunk), [&](RowPart const& sample_part) {
      Range const part = sample_part.rows;
      std::int64_t const first = part.begin - sample_part.segment_begin;
      std::int64_t const num_added = std::clamp<std::int64_t>(max_length - first, 0, part.size());
      std::int64_t const dense_row = sample_part.segment * max_length + std::min(first, max_length);
      with_element(rows.type, [&]<class Element>() {
        add_part(static_cast<Element const*>(rows.values) + part.begin * columns,
                 static_cast<Element const*>(dense) + dense_row * columns, num_added * columns, part.size() * columns,
                 static_cast<Element*>(out) + part.begin * columns);
      });
    });
  });
}

}  // namespace headway::kernels
