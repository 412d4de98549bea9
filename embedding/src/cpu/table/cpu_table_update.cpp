// SPDX-License-Identifier: Apache-2.0

// Optimizer steps of a CPU table.
//
// Idea: threads take ranges of the batch, whose keys are unique, so no row is updated twice. The optimizer reads and
// writes a row in place. update_bags() first reduces the gradients of bags to one gradient per key (segmented_sum.hpp).
//
// Invariants: sums are taken in the order of the batch, so results do not depend on the number of threads. Gradients of
//   keys without a row are counted and dropped.
// Complexity: O(keys * dim).

#include "cpu/deduplication/segmented_sum.hpp"
#include "cpu/table/cpu_table.hpp"
#include "expect_batch.hpp"
#include "headway/base/status.hpp"

#include <atomic>
#include <mutex>
#include <vector>

namespace headway::embedding {

template <class Visit, class Miss>
void CpuTable::for_each_row(std::span<RowId const> rows, std::size_t first, std::size_t end, Visit visit,
                            Miss miss) const {
  for (std::size_t i = first; i < end; ++i) {
    if (i + kRowsAhead < end && rows_.has(rows[i + kRowsAhead])) rows_.prefetch(rows[i + kRowsAhead]);
    if (rows[i] == RowId::kNone) {
      miss(i);
    } else {
      expect_row(rows[i]);
      visit(i);
    }
  }
}

template <class GradientOf>
void CpuTable::apply_gradients(Keys const& keys, std::span<RowId const> rows, kernels::OptimizerStep const& step,
                               GradientOf gradient_of) {
  std::size_t const dim = options_.dim;
  auto const common = rows_.step(step);
  std::atomic<std::uint64_t> num_dropped = 0;
  thread_pool_->in_ranges_of(keys.size(), dim * sizeof(float), [&](std::size_t first, std::size_t end) {
    std::vector<float> sum(dim), scratch(options_.hot_count > 0 ? dim : 0);
    std::size_t num_rowless = 0;
    for_each_row(
        rows, first, end, [&](std::size_t i) { rows_.update(rows[i], keys[i], common, gradient_of(i, sum), scratch); },
        [&](std::size_t /*i*/) { ++num_rowless; });
    num_dropped += num_rowless;
  });
  // The statistics of a table are sums over its stripes, so any stripe will do.
  stripes_.front().statistics.dropped_gradients += num_dropped;
}

void CpuTable::update(Keys const& keys, std::span<RowId const> rows, std::span<float const> gradients,
                      kernels::OptimizerStep const& step) {
  expect_one_each(keys, rows.size(), "rows");
  std::size_t const dim = options_.dim;
  expect_values(keys, gradients.size(), dim, "gradients");
  std::lock_guard const lock(mutex_);
  apply_gradients(keys, rows, step,
                  [&](std::size_t i, std::span<float> /*sum*/) { return gradients.subspan(i * dim, dim); });
}

void CpuTable::update_bags(Keys const& keys, std::span<RowId const> rows, CsrMap const& csr, Bags const& bags,
                           std::span<float const> gradients, kernels::OptimizerStep const& step) {
  expect_one_each(keys, rows.size(), "rows");
  std::size_t const dim = options_.dim, num_bags = count_bags_on_host(expect_csr(keys, csr), bags);
  base::expects(gradients.size() == num_bags * dim, "gradients do not have a row for each bag");
  std::lock_guard const lock(mutex_);
  CpuSegmentedSum const sums(csr, bags, dim, gradients, *thread_pool_);
  apply_gradients(keys, rows, step, [&](std::size_t i, std::span<float> sum) -> std::span<float const> {
    sums.reduce(i, sum);
    return sum;
  });
}

}  // namespace headway::embedding
