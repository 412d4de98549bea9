#pragma once

#include "cpu/row_store.hpp"
#include "headway/embedding/bfloat16.hpp"
#include "headway/embedding/table.hpp"
#include "headway/kernels/row_optimizer.hpp"
#include "table_rows_format.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace headway::embedding {

/// What is in the rows of a table, of both precisions.
class TableRows {
 public:
  /// @throws comm::UsageError for a dim out of its range
  TableRows(std::size_t dim, kernels::RowOptimizer const& optimizer);

  /// As RowStore::reserve() has it.
  void reserve(Precision precision, std::size_t num_rows, std::size_t num_allocators);
  void clear();

  /// Gives rows of both precisions. For one thread.
  class Allocator {
   public:
    explicit Allocator(TableRows& rows) : allocators_{RowAllocator(rows.stores_[0]), RowAllocator(rows.stores_[1])} {}
    /// What was reserved for. @throws std::bad_alloc, without any change
    [[nodiscard]] RowId allocate(Precision precision);
    void free(RowId id) noexcept;

   private:
    RowAllocator allocators_[2];
  };

  [[nodiscard]] bool has(RowId id) const {
    bool const is_row = static_cast<std::uint32_t>(id) < 2 * RowStore::kNumIds && plain(id) != RowId::kNone;
    return is_row && static_cast<std::uint32_t>(plain(id)) < store_of(id).num_rows();
  }
  /// Makes what is done with a row soon after faster.
  void prefetch(RowId id) const;
  [[nodiscard]] RowNotes& notes(RowId id) const { return store_of(id).notes(plain(id)); }
  /// (dim) Null where it is in bfloat16.
  [[nodiscard]] float const* find_vector(RowId id) const {
    return precision_of(id) == Precision::kFloat32 ? vector(id).data() : nullptr;
  }
  /// @param out (dim)
  void read(RowId id, std::span<float> out) const;
  /// Rounded to the nearest where it is cold.
  void write(RowId id, std::span<float const> vector);
  /// (state_size(dim)) of the optimizer.
  [[nodiscard]] std::span<float> state(RowId id) const;
  /// Of a new row. @param scratch (dim); likewise below
  void initialise(RowId id, Key key, Initializer const& initializer, std::span<float> scratch);
  /// Copies everything to a row of another precision; `key` and `step` choose the bits for rounding.
  void move(RowId from, RowId to, Key key, std::uint64_t step, std::span<float> scratch);
  struct Step {
    std::uint64_t number;
    kernels::UpdateFactors factors;
  };
  [[nodiscard]] Step step(kernels::OptimizerStep const& step) const { return {step.number, optimizer_.factors(step)}; }
  /// One step of the optimizer. Cold rows are rounded at random, so that small steps are not lost.
  void update(RowId id, Key key, Step const& step, std::span<float const> gradient, std::span<float> scratch);

  /// Of rows that are or were in use.
  [[nodiscard]] std::size_t num_bytes() const;

 private:
  [[nodiscard]] static RowId plain(RowId id) { return RowId{plain_number(id)}; }
  [[nodiscard]] RowStore const& store_of(RowId id) const { return stores_[static_cast<std::size_t>(precision_of(id))]; }
  /// Of a row of float32.
  [[nodiscard]] std::span<float> vector(RowId id) const {
    return {reinterpret_cast<float*>(store_of(id).row(plain(id))), dim_};
  }
  [[nodiscard]] std::span<Bfloat16> cold_vector(RowId id) const {
    return {reinterpret_cast<Bfloat16*>(store_of(id).row(plain(id))), dim_};
  }
  /// `vector` rounded at random, by words that depend on key, step and column alone.
  void write_at_random(RowId id, Key key, std::uint64_t step, std::span<float const> vector);

  std::size_t dim_;
  kernels::RowOptimizer optimizer_;
  std::size_t state_begins_[2];  ///< Bytes of a row before its state, by precision.
  RowStore stores_[2];
};

}  // namespace headway::embedding
