#include "cpu/row_store.hpp"

#include "headway/comm/status.hpp"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>

namespace headway::embedding {

namespace {

constexpr std::size_t kChunkBytes = std::size_t{32} << 20;

/// All of a block's rows; the first of all is RowId::kNone, which is no row.
constexpr std::uint64_t all_of(std::size_t block) { return block == 0 ? ~std::uint64_t{1} : ~std::uint64_t{0}; }

}  // namespace

RowStore::RowStore(std::size_t row_bytes) : row_bytes_(row_bytes), chunk_bits_(0) {
  comm::expects(row_bytes > 0 && row_bytes % kRowUnit == 0,
                "row_bytes must be a multiple of 16, not " + std::to_string(row_bytes));
  std::size_t const rows = std::max(std::bit_floor(kChunkBytes / row_bytes), kBlockRows);
  chunk_bits_ = std::countr_zero(rows);
}

void RowStore::reserve(std::size_t num_rows, std::size_t num_allocators) {
  // Each allocator may leave a part of a block, and the first block lacks a row.
  std::size_t const blocks = num_taken_ + num_rows / kBlockRows + num_allocators + 1;
  std::size_t const blocks_per_chunk = rows_per_chunk() / kBlockRows;
  std::size_t const chunks = (blocks + blocks_per_chunk - 1) / blocks_per_chunk + 1;
  if (chunks * rows_per_chunk() > kNumIds) {
    throw std::length_error("a table has no more than " + std::to_string(kMostTableRows) + " rows on a rank");
  }
  while (chunks_.size() < chunks) chunks_.emplace_back(rows_per_chunk() * (row_bytes_ + sizeof(RowNotes)));
  for (std::size_t block = free_rows_.size(); block < chunks_.size() * blocks_per_chunk; ++block) {
    free_rows_.push_back(all_of(block));
  }
}

void RowStore::clear() {
  chunks_.clear();
  free_rows_.clear();
  num_taken_ = 0;
}

std::optional<std::size_t> RowStore::take_block() {
  std::lock_guard const lock(mutex_);
  if (num_taken_ == free_rows_.size()) return std::nullopt;
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
  auto& free_rows = store_->free_rows_[block];
  auto const place = static_cast<std::size_t>(std::countr_zero(free_rows));
  free_rows &= free_rows - 1;
  if (free_rows == 0) blocks_.pop_back();
  return RowId{static_cast<std::uint32_t>(block * RowStore::kBlockRows + place)};
}

void RowAllocator::free(RowId id) noexcept {
  std::size_t const block = static_cast<std::uint32_t>(id) / RowStore::kBlockRows;
  auto& free_rows = store_->free_rows_[block];
  if (free_rows == 0) blocks_.push_back(block);
  free_rows |= std::uint64_t{1} << static_cast<std::uint32_t>(id) % RowStore::kBlockRows;
}

}  // namespace headway::embedding
