#pragma once

#include "cpu/huge_memory.hpp"
#include "headway/embedding/table.hpp"
#include "table_rows_format.hpp"

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

namespace headway::embedding {

/// What is known of a row besides its values.
struct RowNotes {
  std::uint32_t count;  ///< Lookups.
  std::uint32_t step;   ///< Of the last lookup.
  float state;          ///< Of an optimizer that keeps one number a row.
};

/// The embedding structure: rows in chunks, each with the notes of its rows behind it. A chunk is mapped before it is
/// needed, and costs nothing until its rows are written. Rows are handed out in blocks, each to one RowAllocator.
/// Pages are huge as soon as there can be a huge page of rows, so that a small table does not take two of them.
class RowStore {
 public:
  static constexpr std::size_t kBlockRows = 64, kRowUnit = 16;
  static constexpr std::size_t kNumIds = kNumRowIds;

  /// `row_bytes`: a multiple of kRowUnit. @throws comm::UsageError
  explicit RowStore(std::size_t row_bytes);

  /// Maps what `num_rows` more rows of `num_allocators` can need, and a chunk ahead; nobody may use the store
  /// meanwhile.
  /// @throws std::bad_alloc; std::length_error beyond kNumIds
  void reserve(std::size_t num_rows, std::size_t num_allocators);
  /// Nobody has any row any more, and all allocators are gone.
  void clear();

  [[nodiscard]] std::byte* row(RowId id) const { return chunks_[chunk_of(id)].data() + place_of(id) * row_bytes_; }
  [[nodiscard]] RowNotes& notes(RowId id) const {
    return reinterpret_cast<RowNotes*>(chunks_[chunk_of(id)].data() + rows_per_chunk() * row_bytes_)[place_of(id)];
  }

  [[nodiscard]] std::size_t row_bytes() const { return row_bytes_; }
  /// Rows of all blocks that were taken.
  [[nodiscard]] std::size_t num_rows() const { return num_taken_ * kBlockRows; }
  /// Pages that rows and notes of all taken blocks lie in, and the list of free rows.
  [[nodiscard]] std::size_t num_bytes() const;
  [[nodiscard]] std::size_t num_chunks() const { return chunks_.size(); }
  [[nodiscard]] std::size_t rows_per_chunk() const { return std::size_t{1} << chunk_bits_; }

 private:
  friend class RowAllocator;

  [[nodiscard]] std::size_t chunk_of(RowId id) const { return static_cast<std::uint32_t>(id) >> chunk_bits_; }
  [[nodiscard]] std::size_t place_of(RowId id) const { return static_cast<std::uint32_t>(id) & (rows_per_chunk() - 1); }
  /// Reads no size, which another thread may change by taking a block.
  [[nodiscard]] std::uint64_t& free_rows_of(std::size_t block) { return free_rows_.data()[block]; }
  /// Thread-safe; none: what was reserved is used up.
  [[nodiscard]] std::optional<std::size_t> take_block();
  [[nodiscard]] std::size_t blocks_per_chunk() const { return rows_per_chunk() / kBlockRows; }
  /// Bytes of the pages that the first `num_rows` rows of a chunk, and their notes, lie in.
  [[nodiscard]] std::size_t bytes_in(HugeMemory const& chunk, std::size_t num_rows) const;

  std::size_t row_bytes_;
  int chunk_bits_;
  std::vector<HugeMemory> chunks_;
  /// A bit for each row of a taken block; used by the allocator that has the block. There is room for all mapped
  /// blocks, so that adding one moves no other.
  std::vector<std::uint64_t> free_rows_;
  std::mutex mutex_;
  std::size_t num_taken_ = 0;  ///< Blocks, under the mutex.
};

/// Gives rows of its own blocks. For one thread.
class RowAllocator {
 public:
  explicit RowAllocator(RowStore& store) : store_(&store) {}

  /// kNone: what was reserved is used up.
  /// @throws std::bad_alloc, without any change
  [[nodiscard]] RowId allocate();
  void free(RowId id) noexcept;

 private:
  RowStore* store_;
  std::size_t num_blocks_ = 0;       ///< Its own.
  std::vector<std::size_t> blocks_;  ///< Those with free rows; there is room for all. The last is used first.
};

}  // namespace headway::embedding
