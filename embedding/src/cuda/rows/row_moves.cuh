// SPDX-License-Identifier: Apache-2.0

// Warp-wide steps for rows that change their precision: take a free row for some lanes, copy a row with all lanes.

#pragma once

#include "cuda/rows/free_rows.cuh"
#include "cuda/rows/rows_view.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/state/table_state.hpp"
#include "table_rows_format.hpp"

#include <cstdint>

namespace headway::embedding {

/// Counts the threads with `is_wanted`, with one atomic for a warp, and gives each of them its own index from the
/// counter's value on, in any order. All lanes of a warp call it. The counter is in shared or in global memory.
__device__ inline std::uint32_t take_place(bool is_wanted, std::uint32_t& num_taken) {
  std::uint32_t const lane = threadIdx.x % kWarp;
  std::uint32_t const takers = __ballot_sync(kAllLanes, is_wanted);
  std::uint32_t first = 0;
  if (lane == 0 && takers != 0) first = atomicAdd(&num_taken, static_cast<std::uint32_t>(__popc(takers)));
  return __shfl_sync(kAllLanes, first, 0) + static_cast<std::uint32_t>(__popc(takers & ((1U << lane) - 1)));
}

/// Takes a free row of this precision for each lane with `is_wanted`. All lanes of a warp call it.
__device__ inline RowId take_row(TableState& state, FreeLists const& lists, bool is_wanted, Precision precision) {
  auto const index = static_cast<std::uint32_t>(precision);
  auto& rows = state.free_rows[index];
  std::uint32_t const ticket = take_place(is_wanted, rows.num_taken);
  return is_wanted ? row_id(precision, taken_row(rows, lists.indices[index], ticket)) : RowId::kNone;
}

/// Copies a row (embedding, optimizer states, lookup count, step of the last lookup) to a row of another precision. All
/// lanes of a warp call it with the same arguments. `key` and the present `step` seed the stochastic rounding.
__device__ inline void copy_row(RowsView const& rows, RowId from, RowId to, Key key, std::uint64_t step) {
  std::uint32_t const lane = threadIdx.x % kWarp;
  for (std::uint32_t quad = lane; quad < rows.num_quads(); quad += kWarp) {
    rows.write_stochastically(to, quad, key, step, rows.read(from, quad));
  }
  for (std::uint32_t j = lane; j < rows.state_size; j += kWarp) rows.state(to)[j] = rows.state(from)[j];
  if (lane != 0) return;
  rows.metadata(to) = rows.metadata(from);
  if (rows.is_row_wise) rows.row_state(to) = rows.row_state(from);
}

}  // namespace headway::embedding
