// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/rows/row_store.hpp"
#include "headway/embedding/bfloat16.hpp"
#include "headway/embedding/table.hpp"
#include "headway/kernels/row_optimizer.hpp"
#include "table_rows_format.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace headway::embedding {

/// Contents of a table's rows: embedding, optimizer state and metadata (lookup count, step of the last lookup, state of
/// a row-wise optimizer). There are two stores, one for each precision. Rows in bfloat16 are called cold. Different
/// rows may be used by different threads at the same time.
class TableRows {
 public:
  /// @throws base::UsageError for a dim out of its range
  TableRows(std::size_t dim, kernels::RowOptimizer const& optimizer);

  /// RowStore::reserve() on the store of `precision`.
  void reserve(Precision precision, std::size_t num_rows, std::size_t num_allocators);
  void clear();

  /// Allocates rows of both precisions, for one thread.
  class Allocator {
   public:
    explicit Allocator(TableRows& rows) : allocators_{RowAllocator(rows.stores_[0]), RowAllocator(rows.stores_[1])} {}
    /// A row of those that were reserved; kNone if they are used up. @throws std::bad_alloc, without any change
    [[nodiscard]] RowId allocate(Precision precision);
    void free(RowId id) noexcept;

   private:
    RowAllocator allocators_[2];
  };

  /// Whether `id` lies in a block that was taken. Does not tell whether the row is in use.
  [[nodiscard]] bool has(RowId id) const {
    bool const is_row = static_cast<std::uint32_t>(id) < 2 * RowStore::kNumIds && plain(id) != RowId::kNone;
    return is_row && static_cast<std::uint32_t>(plain(id)) < store_of(id).num_rows();
  }
  /// Prefetches the cache lines of a row's embedding and state into the level 2 cache.
  void prefetch(RowId id) const;
  [[nodiscard]] RowMetadata& metadata(RowId id) const { return store_of(id).metadata(plain(id)); }
  /// (dim) Embedding of a float32 row; null for a bfloat16 row.
  [[nodiscard]] float const* find_embedding(RowId id) const {
    return precision_of(id) == Precision::kFloat32 ? embedding(id).data() : nullptr;
  }
  /// Copies the embedding to `out` (dim), widened to float32.
  void read(RowId id, std::span<float> out) const;
  /// Sets the embedding; a cold row is rounded to the nearest bfloat16.
  void write(RowId id, std::span<float const> embedding);
  /// (state_size(dim)) Optimizer state of a row.
  [[nodiscard]] std::span<float> state(RowId id) const;
  /// Sets initial embedding, state and metadata of a new row.
  /// @param scratch (dim), for a cold row; likewise below
  void initialise(RowId id, Key key, Initializer const& initializer, std::span<float> scratch);
  /// Copies embedding, state and metadata to a row of another precision. `key` and `step` choose the random bits of
  /// rounding.
  void move(RowId from, RowId to, Key key, std::uint64_t step, std::span<float> scratch);
  /// Factors of one optimizer step, computed once for all rows.
  struct Step {
    std::uint64_t number;  ///< Number of the optimizer step; chooses the random bits of rounding.
    kernels::UpdateFactors factors;
  };
  [[nodiscard]] Step step(kernels::OptimizerStep const& step) const { return {step.number, optimizer_.factors(step)}; }
  /// Applies one optimizer step. Cold rows are rounded stochastically, so that small steps are not lost.
  void update(RowId id, Key key, Step const& step, std::span<float const> gradient, std::span<float> scratch);

  /// Bytes of rows that are or were in use.
  [[nodiscard]] std::size_t num_bytes() const;

 private:
  /// Id of a row within the store of its precision: a RowId without its precision bit.
  [[nodiscard]] static RowId plain(RowId id) { return RowId{row_index(id)}; }
  [[nodiscard]] RowStore const& store_of(RowId id) const { return stores_[static_cast<std::size_t>(precision_of(id))]; }
  /// Embedding of a float32 row.
  [[nodiscard]] std::span<float> embedding(RowId id) const {
    return {reinterpret_cast<float*>(store_of(id).row(plain(id))), dim_};
  }
  [[nodiscard]] std::span<Bfloat16> cold_embedding(RowId id) const {
    return {reinterpret_cast<Bfloat16*>(store_of(id).row(plain(id))), dim_};
  }
  /// Writes `embedding` with stochastic rounding. The random bits depend on key, step and column alone.
  void write_stochastically(RowId id, Key key, std::uint64_t step, std::span<float const> embedding);

  std::size_t dim_;
  kernels::RowOptimizer optimizer_;
  std::size_t state_begins_[2];  ///< By precision: bytes of a row before its state.
  RowStore stores_[2];
};

}  // namespace headway::embedding
