// SPDX-License-Identifier: Apache-2.0

// Counters of a table that only kernels can keep. They live in device memory; all are updated by atomics, except where
// a single thread runs alone, for example to settle the free rows after a call.

#pragma once

#include "headway/embedding/table.hpp"
#include "stripe_map.hpp"

#include <cstddef>
#include <cstdint>

namespace headway::embedding {

/// Free rows of one precision: the numbers in a list, and all numbers from `next` on. A call takes rows from the end of
/// the list, then from `next`, and appends freed rows behind the list. settle_free_rows_async() then closes the gap.
struct FreeRows {
  std::uint32_t num_listed = 0;                ///< Numbers in the list.
  std::uint32_t next = 1;                      ///< First number that was never used; 0 is RowId::kNone.
  std::uint32_t num_taken = 0, num_freed = 0;  ///< Rows taken and freed by the call that runs.
};

/// Counters of a table on a device, in device memory. The host has late copies (StateMirror).
struct TableState {
  std::uint32_t used[StripeMap::kCount] = {};  ///< Slots of each stripe that are not kEmpty, tombstones included.
  std::uint32_t live[StripeMap::kCount] = {};  ///< Slots of each stripe with a key.
  FreeRows free_rows[2];                       ///< By Precision.
  /// Rows; those with a bfloat16 embedding; keys whose lookups are counted until they get a row.
  std::uint32_t num_rows = 0, num_cold = 0, num_pending = 0;
  std::uint32_t num_parts_left = 0;  ///< Parts of a large table that eviction has yet to visit, one in each step.
  std::uint32_t num_bad_rows = 0;    ///< Row ids passed by callers that the table does not have.
  TableStatistics statistics;
};

}  // namespace headway::embedding
