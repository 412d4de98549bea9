#pragma once

#include "cuda/free_rows.cuh"
#include "cuda/growable_memory.hpp"
#include "cuda/rows_view.cuh"
#include "headway/kernels/row_optimizer.hpp"

#include <array>
#include <cstddef>
#include <memory>

namespace headway::embedding {

/// Memory of the rows of a table on a device, of both precisions, that grows without moving: vectors with their state,
/// and apart from them what lookups change, so that rows lie on whole cache lines.
class DeviceRows {
 public:
  /// @throws comm::SystemError
  DeviceRows(int device, std::size_t dim, kernels::RowOptimizer const& optimizer);

  [[nodiscard]] RowsView const& view() const { return view_; }
  [[nodiscard]] FreeLists free_lists() const;
  /// Makes room for rows with numbers below `end`, and a chunk ahead. @throws std::bad_alloc; std::length_error
  void grow(Precision precision, std::size_t end);
  /// Makes room for lists of all rows, before a call that frees some.
  void grow_lists();
  /// Rows of both precisions that there is room for.
  [[nodiscard]] std::size_t num_rows() const { return memory_[0]->num_rows + memory_[1]->num_rows; }
  /// Nobody uses any row any more.
  void clear();

  /// Of a row, with all that is known of it.
  [[nodiscard]] std::size_t row_bytes(Precision precision) const;
  /// That lists of free rows have.
  [[nodiscard]] std::size_t list_bytes() const;

 private:
  struct Memory {
    Memory(int device, std::size_t most_rows, std::size_t row_bytes);
    GrowableMemory rows, notes, row_states, list;
    std::size_t num_rows = 0;
  };

  RowsView view_;
  std::array<std::unique_ptr<Memory>, 2> memory_;
};

}  // namespace headway::embedding
