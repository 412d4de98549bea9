// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/rows/free_rows.cuh"
#include "cuda/rows/rows_view.cuh"
#include "cuda/runtime/growable_memory.hpp"
#include "headway/kernels/row_optimizer.hpp"

#include <array>
#include <cstddef>
#include <memory>

namespace headway::embedding {

/// Row store of a table on a device, for both precisions: embeddings are float32 or, in cold rows, bfloat16. It grows
/// without moving rows. Counts and steps are in arrays of their own, apart from embeddings and states, so that rows lie
/// on whole cache lines.
class DeviceRows {
 public:
  /// @throws base::SystemError
  DeviceRows(int device, std::size_t dim, kernels::RowOptimizer const& optimizer);

  [[nodiscard]] RowsView const& view() const { return view_; }
  [[nodiscard]] FreeLists free_lists() const;
  /// Maps memory for rows with an index below `end`; never shrinks. @throws std::bad_alloc; std::length_error
  void grow(Precision precision, std::size_t end);
  /// Makes room for all rows in the free lists. Call it before kernels that free rows.
  void grow_lists();
  /// Capacity in rows, over both precisions.
  [[nodiscard]] std::size_t num_rows() const { return memory_[0]->num_rows + memory_[1]->num_rows; }
  /// Frees all memory. The device must have finished with all rows.
  void clear();

  /// Bytes of a row with its count, step and row-wise state.
  [[nodiscard]] std::size_t row_bytes(Precision precision) const;
  /// Bytes of the free lists.
  [[nodiscard]] std::size_t list_bytes() const;

 private:
  /// Arrays of one precision, indexed by row index.
  struct Memory {
    Memory(int device, std::size_t most_rows, std::size_t row_bytes);
    GrowableMemory rows, metadata, row_states, list;
    std::size_t num_rows = 0;
  };

  RowsView view_;
  std::array<std::unique_ptr<Memory>, 2> memory_;  ///< By Precision.
};

}  // namespace headway::embedding
