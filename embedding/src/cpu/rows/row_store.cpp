// SPDX-License-Identifier: Apache-2.0

// Memory of rows and of their metadata, and the blocks of row allocators; row_store.hpp has the idea.

#include "cpu/rows/row_store.hpp"

#include "headway/base/status.hpp"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>

namespace headway::embedding {

namespace {

constexpr std::size_t kChunkBytes = std::size_t{32} << 20;

/// Bits of a block whose rows are all free. Row 0 of block 0 is RowId::kNone, so it is never free.
constexpr std::uint64_t all_of(std::size_t block) { return block == 0 ? ~std::uint64_t{1} : ~std::uint64_t{0}; }

}  // namespace

RowStore::RowStore(std::size_t row_bytes) : row_bytes_(row_bytes), chunk_bits_(0) {
  base::expects(row_bytes > 0 && row_bytes % kRowUnit == 0,
                "row_bytes must be a multiple of 16, not " + std::to_string(row_bytes));
  std::size_t const rows = std::max(std::bit_floor(kChunkBytes / row_bytes), kBlockRows);
  chunk_bits_ = std::countr_zero(rows);
}

void RowStore::reserve(std::size_t num_rows, std::size_t num_allocators) {
  // Each allocator may leave a part of its last block unused, and the first block has one row less.
  std::size_t const blocks = num_taken_ + num_rows / kBlockRows + num_allocators + 1;
  std::size_t const chunks = (blocks + blocks_per_chunk() - 1) / blocks_per_chunk() + 1;
  if (chunks * rows_per_chunk() > kNumIds) {
    throw std::length_error("a table has no more than " + std::to_string(kMostTableRows) + " rows on a rank");
  }
  // Doubles, so that growth by single chunks costs amortised O(1). take_block() then never moves the words of others,
  // also after a failure below.
  std::size_t const mapped = std::max(chunks, chunks_.size()) * blocks_per_chunk();
  if (mapped > free_rows_.capacity()) free_rows_.reserve(std::max(mapped, 2 * free_rows_.capacity()));
  bool const is_small = (num_taken_ * kBlockRows + num_rows) * row_bytes_ < HugeMemory::kPageBytes;
  auto const pages = is_small ? HugeMemory::Pages::kSmall : HugeMemory::Pages::kHuge;
  // A chunk holds the rows, then their metadata.
  while (chunks_.size() < chunks) chunks_.emplace_back(rows_per_chunk() * (row_bytes_ + sizeof(RowMetadata)), pages);
  if (!is_small) {
    for (auto& chunk : chunks_) {
      if (chunk.pages() == HugeMemory::Pages::kSmall) chunk.use_huge_pages();
    }
  }
}

std::size_t RowStore::num_bytes() const {
  std::size_t sum = free_rows_.size() * sizeof(std::uint64_t), rest = num_rows();
  for (auto const& chunk : chunks_) {
    std::size_t const rows = std::min(rest, rows_per_chunk());
    sum += bytes_in(chunk, rows);
    rest -= rows;
  }
  return sum;
}

std::size_t RowStore::bytes_in(HugeMemory const& chunk, std::size_t num_rows) const {
  bool const is_small = chunk.pages() == HugeMemory::Pages::kSmall;
  std::size_t const page = is_small ? HugeMemory::kSmallPageBytes : HugeMemory::kPageBytes;
  // Bytes of the pages that overlap [begin, begin + size).
  auto const pages_of = [page](std::size_t begin, std::size_t size) {
    return size == 0 ? 0 : round_up(begin + size, page) - begin / page * page;
  };
  std::size_t const metadata_begin = rows_per_chunk() * row_bytes_;
  return std::min(pages_of(0, num_rows * row_bytes_) + pages_of(metadata_begin, num_rows * sizeof(RowMetadata)),
                  chunk.size());
}

void RowStore::clear() {
  chunks_.clear();
  free_rows_.clear();
  num_taken_ = 0;
}

std::optional<std::size_t> RowStore::take_block() {
  std::lock_guard const lock(mutex_);
  if (num_taken_ == chunks_.size() * blocks_per_chunk()) return std::nullopt;
  free_rows_.push_back(all_of(num_taken_));
  return num_taken_++;
}

RowId RowAllocator::allocate() {
  if (blocks_.empty()) {
    blocks_.reserve(num_blocks_ + 1);  // free() must not fail.
    auto const taken = store_->take_block();
    if (!taken) return RowId::kNone;
    ++num_blocks_;
    blocks_.push_back(*taken);
  }
  std::size_t const block = blocks_.back();
  auto& free_rows = store_->free_rows_of(block);
  auto const bit = static_cast<std::size_t>(std::countr_zero(free_rows));
  free_rows &= free_rows - 1;
  if (free_rows == 0) blocks_.pop_back();
  return RowId{static_cast<std::uint32_t>(block * RowStore::kBlockRows + bit)};
}

void RowAllocator::free(RowId id) noexcept {
  std::size_t const block = static_cast<std::uint32_t>(id) / RowStore::kBlockRows;
  auto& free_rows = store_->free_rows_of(block);
  // The block had no free row, so it was not in the list; its capacity was reserved when the block was taken.
  if (free_rows == 0) blocks_.push_back(block);
  free_rows |= std::uint64_t{1} << static_cast<std::uint32_t>(id) % RowStore::kBlockRows;
}

}  // namespace headway::embedding
