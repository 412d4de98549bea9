#pragma once

#include "cuda/launch.cuh"
#include "cuda/table_state.hpp"
#include "table_rows_format.hpp"

#include <cstdint>

namespace headway::embedding {

/// Numbers of free rows; TableState::free_rows has their counts.
struct FreeLists {
  std::uint32_t* numbers[2];  ///< By Precision.
};

/// Number of the row that a call takes with `ticket` (from 0): first the end of the list, then numbers from `next` on.
__device__ inline std::uint32_t taken_row(FreeRows const& rows, std::uint32_t const* list, std::uint32_t ticket) {
  return ticket < rows.num_listed ? list[rows.num_listed - 1 - ticket] : rows.next + (ticket - rows.num_listed);
}

/// Frees a row: appends its number behind the list, where no call takes it before settle_free_rows_async().
__device__ inline void free_row(TableState& state, FreeLists const& lists, RowId id) {
  auto const precision = static_cast<std::uint32_t>(precision_of(id));
  auto& rows = state.free_rows[precision];
  std::uint32_t const place = atomicAdd(&rows.num_freed, 1U);
  lists.numbers[precision][rows.num_listed + place] = plain_number(id);
}

/// Closes the gap between the rest of the list and the freed rows, and resets the call's counters. Every call that took
/// or freed rows ends with it.
void settle_free_rows_async(TableState* state, FreeLists const& lists, cudaStream_t stream);

}  // namespace headway::embedding
