#pragma once

#include "headway/embedding/table.hpp"
#include "stripe_map.hpp"

#include <cstddef>
#include <cstdint>

namespace headway::embedding {

/// Rows of one precision that no key has. Within a call rows are either taken or freed, and then settled.
struct FreeRows {
  std::uint32_t num_listed = 0;                ///< Free rows in the list; beyond it all rows from `next` on are free.
  std::uint32_t next = 1;                      ///< 0 is RowId::kNone.
  std::uint32_t num_taken = 0, num_freed = 0;  ///< By the call that runs.
};

/// What a table on a device counts, in its memory. The host has copies that may be a few calls old.
struct TableState {
  std::uint32_t used[StripeMap::kCount] = {};  ///< Slots of each stripe that are not empty.
  std::uint32_t live[StripeMap::kCount] = {};  ///< Those with a key.
  FreeRows free_rows[2];
  std::uint32_t num_rows = 0, num_cold = 0, num_pending = 0;
  std::uint32_t num_bad_rows = 0;  ///< That callers gave, but the table does not have.
  TableStatistics statistics;
};

}  // namespace headway::embedding
