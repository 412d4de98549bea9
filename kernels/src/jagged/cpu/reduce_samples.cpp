// SPDX-License-Identifier: Apache-2.0

// Sums or means of jagged samples on the CPU. A task has 64 samples and adds the rows of each in order, in the
// accumulation type, so the result does not depend on the executor. A mean of no rows is 0.

#include "elements.hpp"
#include "headway/kernels/jagged_sums.hpp"
#include "jagged/cpu/segment_checks.hpp"
#include "jagged/expect_sizes.hpp"

#include <algorithm>
#include <vector>

namespace headway::kernels {

namespace {

constexpr std::int64_t kSamplesOfTask = 64;  ///< Samples per task.

/// Reduces the samples of one task.
template <class Element>
void reduce(JaggedRows const& rows, SampleReduction reduction, void* out, Range samples) {
  auto const* const values = static_cast<Element const*>(rows.values);
  auto* sums_out = static_cast<Element*>(out) + samples.begin * rows.num_columns;
  std::vector<Real<Element>> sums(static_cast<std::size_t>(rows.num_columns));
  for (std::int64_t sample = samples.begin; sample < samples.end; ++sample) {
    std::ranges::fill(sums, Real<Element>{0});
    std::int64_t const begin = rows.offsets[sample], end = rows.offsets[sample + 1];
    for (std::int64_t row = begin; row < end; ++row) {
      auto const* const value = values + row * rows.num_columns;
      for (std::size_t column = 0; column < sums.size(); ++column) sums[column] += as_real(value[column]);
    }
    bool const is_mean = reduction == SampleReduction::kMean && end > begin;
    Real<Element> const divisor = is_mean ? static_cast<Real<Element>>(end - begin) : 1;
    for (auto const sum : sums) *sums_out++ = nearest<Element>(sum / divisor);
  }
}

}  // namespace

void reduce_samples(JaggedRows const& rows, SampleReduction reduction, void* out, Executor const& executor) {
  expect_sizes(rows);
  expect_packed({.offsets = rows.offsets, .num_items = rows.num_samples}, rows.num_samples, rows.num_rows, executor);
  executor((rows.num_samples + kSamplesOfTask - 1) / kSamplesOfTask, [&](std::int64_t task) {
    Range const samples{task * kSamplesOfTask, std::min((task + 1) * kSamplesOfTask, rows.num_samples)};
    with_element(rows.type, [&]<class Element>() { reduce<Element>(rows, reduction, out, samples); });
  });
}

}  // namespace headway::kernels
