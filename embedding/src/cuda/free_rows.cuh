#pragma once

#include "cuda/launch.cuh"
#include "cuda/table_state.hpp"
#include "table_rows_format.hpp"

#include <cstdint>

namespace headway::embedding {

/// The numbers of free rows, by precision, beside TableState::free_rows.
struct FreeLists {
  std::uint32_t* numbers[2];
};

/// The row that is the `ticket`-th which this call takes.
__device__ inline std::uint32_t taken_row(FreeRows const& rows, std::uint32_t const* list, std::uint32_t ticket) {
  return ticket < rows.num_listed ? list[rows.num_listed - 1 - ticket] : rows.next + (ticket - rows.num_listed);
}

/// Rows that are freed go behind those that were there, until settle_free_rows_async().
__device__ inline void free_row(TableState& state, FreeLists const& lists, RowId id) {
  auto const precision = static_cast<std::uint32_t>(precision_of(id));
  auto& rows = state.free_rows[precision];
  std::uint32_t const place = atomicAdd(&rows.num_freed, 1U);
  lists.numbers[precision][rows.num_listed + place] = plain_number(id);
}

/// Ends a call that took or freed rows.
void settle_free_rows_async(TableState* state, FreeLists const& lists, cudaStream_t stream);

}  // namespace headway::embedding
