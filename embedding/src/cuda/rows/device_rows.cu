// SPDX-License-Identifier: Apache-2.0

// Row store of a table on a device: four growing arrays per precision. They hold rows, metadata (lookup count and step
// of the last lookup), states of a row-wise optimizer (one float per row), and the free list.
//
// Example: dim 10 with Adam (20 floats of state). A float32 row has 40 + 80 = 120 bytes, padded to 128. A bfloat16 row
//  has 20 + 80 = 100 bytes, also padded to 128. With SGD (no state) they have 40, padded to 64, and 20, padded to 32.
//
// Invariants: addresses are reserved once, for all rows that the device's memory could hold, so arrays never move and
//  kernels may keep RowsView by value. Memory is mapped chunk by chunk as row numbers are handed out.

#include "cuda/rows/device_rows.hpp"
#include "headway/base/cuda_check.hpp"

#include <algorithm>

namespace headway::embedding {

namespace {

/// Bytes by which memory grows: rows, and the smaller arrays beside them.
constexpr std::size_t kRowChunk = std::size_t{32} << 20, kMetadataChunk = std::size_t{4} << 20;

}  // namespace

DeviceRows::Memory::Memory(int device, std::size_t most_rows, std::size_t row_bytes)
    : rows(device, most_rows * row_bytes, kRowChunk),
      metadata(device, most_rows * sizeof(DeviceRowMetadata), kMetadataChunk),
      row_states(device, most_rows * sizeof(float), kMetadataChunk),
      list(device, most_rows * sizeof(std::uint32_t), kMetadataChunk) {}

DeviceRows::DeviceRows(int device, std::size_t dim, kernels::RowOptimizer const& optimizer) {
  base::DeviceScope const scope(device);
  std::size_t free_bytes = 0, device_bytes = 0;
  base::check_cuda(cudaMemGetInfo(&free_bytes, &device_bytes), "cudaMemGetInfo");
  view_.dim = static_cast<std::uint32_t>(dim);
  view_.state_size = static_cast<std::uint32_t>(optimizer.state_size(dim));
  view_.is_row_wise = optimizer.is_row_wise();
  std::size_t const vector_bytes[2] = {dim * sizeof(float), round_up(dim * sizeof(Bfloat16), sizeof(float))};
  StoreView* const views[2] = {&view_.hot, &view_.cold};
  for (std::size_t i = 0; i < 2; ++i) {
    std::size_t const row_bytes = padded(vector_bytes[i] + view_.state_size * sizeof(float));
    // The address range is as large as the device's whole memory: reserving more would never be of use.
    memory_[i] =
        std::make_unique<Memory>(device, std::min<std::size_t>(kNumRowIds, device_bytes / row_bytes + 1), row_bytes);
    *views[i] = {.rows = memory_[i]->rows.data(),
                 .metadata = reinterpret_cast<DeviceRowMetadata*>(memory_[i]->metadata.data()),
                 .row_states = reinterpret_cast<float*>(memory_[i]->row_states.data()),
                 .row_bytes = static_cast<std::uint32_t>(row_bytes),
                 .state_begin = static_cast<std::uint32_t>(vector_bytes[i])};
  }
}

FreeLists DeviceRows::free_lists() const {
  auto const list = [&](std::size_t i) { return reinterpret_cast<std::uint32_t*>(memory_[i]->list.data()); };
  return {.indices = {list(0), list(1)}};
}

void DeviceRows::grow(Precision precision, std::size_t end) {
  auto& memory = *memory_[static_cast<std::size_t>(precision)];
  if (end <= memory.num_rows) return;
  memory.rows.grow(end * view_.store(precision).row_bytes);
  memory.metadata.grow(end * sizeof(DeviceRowMetadata));
  if (view_.is_row_wise) memory.row_states.grow(end * sizeof(float));
  memory.num_rows = end;
}

void DeviceRows::grow_lists() {
  for (auto const& memory : memory_) memory->list.grow(memory->num_rows * sizeof(std::uint32_t));
}

void DeviceRows::clear() {
  for (auto const& memory : memory_) {
    for (auto* const part : {&memory->rows, &memory->metadata, &memory->row_states, &memory->list}) part->clear();
    memory->num_rows = 0;
  }
}

std::size_t DeviceRows::row_bytes(Precision precision) const {
  return view_.store(precision).row_bytes + sizeof(DeviceRowMetadata) + (view_.is_row_wise ? sizeof(float) : 0);
}

std::size_t DeviceRows::list_bytes() const { return memory_[0]->list.num_bytes() + memory_[1]->list.num_bytes(); }

}  // namespace headway::embedding
