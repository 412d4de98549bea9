#pragma once

#include "cuda/table_state.hpp"
#include "headway/embedding/table.hpp"
#include "table_rows_format.hpp"

#include <cstdint>

namespace headway::embedding {

/// Range of row numbers in use, to check row ids that callers pass.
struct RowLimits {
  std::uint32_t next_hot, next_cold;

  __device__ explicit RowLimits(TableState const& state)
      : next_hot(state.free_rows[0].next), next_cold(state.free_rows[1].next) {}
  /// `id` if it is kNone or in range. Otherwise counts a bad row, which CudaTable::wait() reports, and returns kNone.
  __device__ RowId checked(RowId id, TableState& state) const {
    if (id == RowId::kNone) return id;
    std::uint32_t const next = precision_of(id) == Precision::kFloat32 ? next_hot : next_cold;
    bool const is_good =
        static_cast<std::uint32_t>(id) < 2 * kNumRowIds && plain_number(id) != 0 && plain_number(id) < next;
    if (is_good) return id;
    atomicAdd(&state.num_bad_rows, 1U);
    return RowId::kNone;
  }
};

}  // namespace headway::embedding
