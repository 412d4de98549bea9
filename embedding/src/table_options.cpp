// SPDX-License-Identifier: Apache-2.0

// Checks of table options and of step numbers, and the order of sweeps; see table_options.hpp.
//
// A sweep looks through a stripe of the table for expired rows. Each step sweeps one stripe, so that no step has to
// look at all rows; a step that comes after a gap sweeps as many stripes as steps were left out. Example: 64 stripes,
// step 100 after step 97: the stripes of steps 98, 99 and 100 are swept, 34, 35 and 36.

#include "table_options.hpp"

#include "bucket.hpp"
#include "headway/base/status.hpp"
#include "headway/embedding/routing.hpp"
#include "table_rows_format.hpp"

#include <algorithm>
#include <string>

namespace headway::embedding {

TableOptions checked(TableOptions options) {
  constexpr std::size_t kMostDim = std::size_t{1} << 20;
  base::expects(options.dim >= 1 && options.dim <= kMostDim,
                "a table needs a dim from 1 to " + std::to_string(kMostDim) + ", not " + std::to_string(options.dim));
  base::expects(options.max_rows == TableOptions::kUnlimited || options.max_rows <= kMostTableRows,
                "a table has at most " + std::to_string(kMostTableRows) + " rows on a rank, not " +
                    std::to_string(options.max_rows));
  // From here on limits are nested: low_water <= high_water <= max_rows <= kMostTableRows. Unlimited ones become equal.
  options.max_rows = std::min(options.max_rows, kMostTableRows);
  options.high_water = std::min(options.high_water, options.max_rows);
  options.low_water = std::min(options.low_water, options.high_water);
  base::expects(options.min_count >= 1 && options.min_count <= kMostPendingCount,
                "keys cannot wait for " + std::to_string(options.min_count) + " lookups");
  return options;
}

void expect_buckets(std::uint32_t first_bucket, std::uint32_t end_bucket) {
  base::expects(first_bucket <= end_bucket && end_bucket <= kNumVirtualBuckets,
                "there are no virtual buckets from " + std::to_string(first_bucket) + " to " +
                    std::to_string(end_bucket) + ", but " + std::to_string(kNumVirtualBuckets));
}

void expect_step(std::uint32_t before, std::uint32_t step, std::uint32_t oldest_in_use) {
  base::expects(step >= before && oldest_in_use <= step, "step " + std::to_string(step) + " with rows in use since " +
                                                             std::to_string(oldest_in_use) + " cannot follow step " +
                                                             std::to_string(before));
}

Sweep sweep_of(std::uint32_t before, std::uint32_t step, std::size_t num_stripes) {
  // A repeated step sweeps its stripe again: fewer rows may be in use than before.
  std::size_t const count = std::min<std::size_t>(std::max(step - before, 1U), num_stripes);
  return {.first = (step + num_stripes - (count - 1)) % num_stripes, .count = count};
}

}  // namespace headway::embedding
