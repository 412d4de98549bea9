// SPDX-License-Identifier: Apache-2.0

// Row store: rows in chunks, handed out in blocks of 64.
//
// Idea: a RowId is an index. Its high bits choose a chunk, its low bits a row in it, so rows never move as the store
// grows. A chunk holds 2^n rows, in 32 MiB or less (a block, if rows are longer than 512 KiB), and behind them their
// metadata (RowMetadata), so that reading it touches no line of values. A chunk is mapped before it is needed and costs
// nothing until its rows are written. Rows are handed out in blocks, each to one RowAllocator. The free rows of a block
// are bits of one word.
//
// Example: rows of 64 bytes, so 2^19 rows in a chunk. Row 600,000 is row 75,712 of chunk 1, and bit 0 of block 9,375.
//
// Invariants: row 0 is RowId::kNone and is never handed out. A block belongs to one allocator, and so to one thread at
//   a time. free_rows_ has capacity for all mapped blocks, so adding one moves no word that another thread uses.
//   Freed rows stay with the allocator of their block; chunks are unmapped only by clear().
// Complexity: O(1) to allocate and free, with a lock once in 64 rows. Metadata take 12 bytes, and a free bit, for each
//   row.

#pragma once

#include "cpu/runtime/huge_memory.hpp"
#include "headway/embedding/table.hpp"
#include "table_rows_format.hpp"

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

namespace headway::embedding {

/// Metadata of a row, besides embedding and optimizer state.
struct RowMetadata {
  std::uint32_t count;  ///< Number of lookups; saturates.
  std::uint32_t step;   ///< Step of the last lookup.
  float state;          ///< Scalar of a row-wise optimizer.
};

/// Memory of rows of one size, with their metadata. Pages are huge once the rows fill at least one huge page:
/// a small table would otherwise take two of them, one for rows and one for metadata.
class RowStore {
 public:
  static constexpr std::size_t kBlockRows = 64, kRowUnit = 16;  ///< Rows of a block; unit of a row's size in bytes.
  static constexpr std::size_t kNumIds = kNumRowIds;            ///< Most row ids, with those mapped ahead.

  /// @param row_bytes a positive multiple of kRowUnit
  /// @throws base::UsageError if it is not
  explicit RowStore(std::size_t row_bytes);

  /// Maps memory for `num_rows` more rows of `num_allocators` allocators, and one chunk ahead. No other thread may use
  /// the store meanwhile.
  /// @throws std::bad_alloc; std::length_error beyond kNumIds
  void reserve(std::size_t num_rows, std::size_t num_allocators);
  /// Unmaps all chunks. No row may be in use, and all allocators must be gone.
  void clear();

  [[nodiscard]] std::byte* row(RowId id) const {
    return chunks_[chunk_of(id)].data() + index_in_chunk(id) * row_bytes_;
  }
  [[nodiscard]] RowMetadata& metadata(RowId id) const {
    return reinterpret_cast<RowMetadata*>(chunks_[chunk_of(id)].data() +
                                          rows_per_chunk() * row_bytes_)[index_in_chunk(id)];
  }

  [[nodiscard]] std::size_t row_bytes() const { return row_bytes_; }
  /// Rows of all blocks that were taken, in use or free. No other thread may allocate meanwhile.
  [[nodiscard]] std::size_t num_rows() const { return num_taken_ * kBlockRows; }
  /// Bytes of the pages that hold rows and metadata of taken blocks, and of the bits of free rows.
  [[nodiscard]] std::size_t num_bytes() const;
  [[nodiscard]] std::size_t num_chunks() const { return chunks_.size(); }
  [[nodiscard]] std::size_t rows_per_chunk() const { return std::size_t{1} << chunk_bits_; }

 private:
  friend class RowAllocator;

  [[nodiscard]] std::size_t chunk_of(RowId id) const { return static_cast<std::uint32_t>(id) >> chunk_bits_; }
  [[nodiscard]] std::size_t index_in_chunk(RowId id) const {
    return static_cast<std::uint32_t>(id) & (rows_per_chunk() - 1);
  }
  /// Free rows of a block, a bit each. Does not read the vector's size, which another thread may change.
  [[nodiscard]] std::uint64_t& free_rows_of(std::size_t block) { return free_rows_.data()[block]; }
  /// Index of a new block; nullopt if the reserved rows are used up. Thread-safe.
  [[nodiscard]] std::optional<std::size_t> take_block();
  [[nodiscard]] std::size_t blocks_per_chunk() const { return rows_per_chunk() / kBlockRows; }
  /// Bytes of the pages that hold the first `num_rows` rows of a chunk and their metadata.
  [[nodiscard]] std::size_t bytes_in(HugeMemory const& chunk, std::size_t num_rows) const;

  std::size_t row_bytes_;
  int chunk_bits_;  ///< log2 of the rows of a chunk.
  std::vector<HugeMemory> chunks_;
  /// One word for each taken block, with a bit for each row: 1 is free. Used by the allocator that has the block.
  std::vector<std::uint64_t> free_rows_;
  std::mutex mutex_;           ///< Guards `num_taken_` while threads allocate.
  std::size_t num_taken_ = 0;  ///< Taken blocks.
};

/// Allocates rows from blocks of its own, for one thread.
class RowAllocator {
 public:
  explicit RowAllocator(RowStore& store) : store_(&store) {}

  /// A free row; kNone if the reserved rows are used up.
  /// @throws std::bad_alloc, without any change
  [[nodiscard]] RowId allocate();
  /// Frees a row that this allocator gave.
  void free(RowId id) noexcept;

 private:
  RowStore* store_;
  std::size_t num_blocks_ = 0;       ///< Blocks that it took.
  std::vector<std::size_t> blocks_;  ///< Blocks with free rows; capacity for all. Used from the back.
};

}  // namespace headway::embedding
