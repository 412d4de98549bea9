// SPDX-License-Identifier: Apache-2.0

// Sorted listing of keys; key_listing.hpp has the idea.
//
// Offsets are counted, summed and then used as write positions: ++offsets[slice + 1] per key, a prefix sum, and one
// more pass that writes each key to the next free position of its slice. Example: slices 1 0 1 count 1 2, the offsets
// are 0 1 3, and the keys are written to positions 1, 0 and 2.

#include "cpu/table/key_listing.hpp"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace headway::embedding {

namespace {

/// With 10 million keys of 24 bytes, a slice takes about 1 MB and fits a cache.
constexpr std::uint32_t kMostSlices = 256;

constexpr std::uint32_t ceil_div(std::uint32_t value, std::uint32_t divisor) { return (value + divisor - 1) / divisor; }

}  // namespace

KeyListing::KeyListing(std::uint32_t first_bucket, std::uint32_t end_bucket, std::size_t num_parts)
    : first_bucket_(first_bucket),
      end_bucket_(end_bucket),
      width_(std::max(1U, ceil_div(end_bucket - first_bucket, kMostSlices))),
      num_slices_(ceil_div(end_bucket - first_bucket, width_)),
      parts_(num_parts) {
  for (auto& part : parts_) part.offsets.resize(num_slices_ + 1);
}

void KeyListing::put(std::size_t part, std::span<ListedKey const> keys) {
  auto& [sliced, offsets] = parts_[part];
  for (auto const& key : keys) ++offsets[slice_of(key) + 1];
  std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
  auto next = offsets;
  sliced.resize(keys.size());
  for (auto const& key : keys) sliced[next[slice_of(key)]++] = key;
}

Records KeyListing::sorted(base::ThreadPool& thread_pool, Columns columns) const {
  // Offset of each slice in the result: parts hold offsets (sums over smaller slices), so their sum is one too.
  std::vector<std::size_t> offsets(num_slices_ + 1);
  for (auto const& part : parts_) {
    for (std::size_t slice = 0; slice <= num_slices_; ++slice) offsets[slice] += part.offsets[slice];
  }
  Records records;
  records.ids.resize(offsets.back());
  records.tables.resize(offsets.back());
  if (columns == Columns::kCounts) records.counts.resize(offsets.back());
  thread_pool.run(num_slices_, [&](std::size_t slice) {
    std::size_t i = offsets[slice];
    for (auto const& key : sorted_slice(slice)) {
      records.ids[i] = key.id;
      records.tables[i] = key.table;
      if (columns == Columns::kCounts) records.counts[i] = key.count;
      ++i;
    }
  });
  return records;
}

std::vector<ListedKey> KeyListing::sorted_slice(std::size_t slice) const {
  std::vector<ListedKey> keys;
  for (auto const& part : parts_) {
    std::span const all(part.keys);
    auto const mine = all.subspan(part.offsets[slice], part.offsets[slice + 1] - part.offsets[slice]);
    keys.insert(keys.end(), mine.begin(), mine.end());
  }
  std::ranges::sort(keys, {}, [](ListedKey const& key) { return std::tuple(key.bucket, key.table, key.id); });
  return keys;
}

}  // namespace headway::embedding
