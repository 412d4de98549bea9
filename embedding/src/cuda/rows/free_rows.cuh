// SPDX-License-Identifier: Apache-2.0

// Free rows on the GPU: a stack of row numbers per precision (float32, bfloat16), used by many threads without locks.
//
// Idea: within a call the list only grows behind `num_listed` (freed rows) and is only read before it (taken rows). A
// thread takes a ticket by an atomic on num_taken and maps it to a row without further synchronisation. Freed rows
// are not taken by the same call, so a row that some thread still reads is never handed out again under it.
//
// Example: list 4 9 6 (num_listed 3), next 12. Tickets 0 to 3 get rows 6, 9, 4 and 12. Meanwhile row 7 is freed: it
//  goes to place 3. settle_free_rows_async() moves it to place 0: list 7, num_listed 1, next 13.
//
// Invariants: each free number is in the list once, or is at least `next`. Between calls num_taken = num_freed = 0.

#pragma once

#include "cuda/runtime/launch.cuh"
#include "cuda/state/table_state.hpp"
#include "headway/embedding/table.hpp"
#include "table_rows_format.hpp"

#include <cstdint>

namespace headway::embedding {

/// Numbers of free rows in device memory; TableState::free_rows has their counts.
struct FreeLists {
  std::uint32_t* indices[2];  ///< By Precision.
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
  lists.indices[precision][rows.num_listed + place] = row_index(id);
}

/// Closes the gap between the rest of the list and the freed rows, and resets the call's counters. Every call that took
/// or freed rows ends with it.
void settle_free_rows_async(TableState* state, FreeLists const& lists, cudaStream_t stream);

/// Range of row numbers in use, to check row ids that callers pass.
struct RowLimits {
  std::uint32_t next_hot, next_cold;

  __device__ explicit RowLimits(TableState const& state)
      : next_hot(state.free_rows[0].next), next_cold(state.free_rows[1].next) {}
  /// `id` if it is kNone or in range. Otherwise counts a bad row, which CudaTable::wait() reports, and returns kNone.
  __device__ RowId checked(RowId id, TableState& state) const {
    if (id == RowId::kNone) return id;
    std::uint32_t const next = precision_of(id) == Precision::kFloat32 ? next_hot : next_cold;
    bool const is_good = static_cast<std::uint32_t>(id) < 2 * kNumRowIds && row_index(id) != 0 && row_index(id) < next;
    if (is_good) return id;
    atomicAdd(&state.num_bad_rows, 1U);
    return RowId::kNone;
  }
};

}  // namespace headway::embedding
