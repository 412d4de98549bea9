#include "cpu/key_listing.hpp"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace headway::embedding {

namespace {

/// With 10 million keys of 24 bytes, a slice takes about 1 MB and fits a cache.
constexpr std::uint32_t kMostSlices = 256;

constexpr std::uint32_t round_up(std::uint32_t value, std::uint32_t divisor) { return (value + divisor - 1) / divisor; }

}  // namespace

KeyListing::KeyListing(std::uint32_t first_bucket, std::uint32_t end_bucket, std::size_t num_parts)
    : first_bucket_(first_bucket),
      end_bucket_(end_bucket),
      width_(std::max(1U, round_up(end_bucket - first_bucket, kMostSlices))),
      num_slices_(round_up(end_bucket - first_bucket, width_)),
      parts_(num_parts) {
  for (auto& part : parts_) part.begins.resize(num_slices_ + 1);
}

void KeyListing::put(std::size_t part, std::span<ListedKey const> keys) {
  auto& [sliced, begins] = parts_[part];
  for (auto const& key : keys) ++begins[slice_of(key) + 1];
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  auto next = begins;
  sliced.resize(keys.size());
  for (auto const& key : keys) sliced[next[slice_of(key)]++] = key;
}

Records KeyListing::sorted(WorkerPool& workers, Columns columns) const {
  std::vector<std::size_t> begins(num_slices_ + 1);
  for (auto const& part : parts_) {
    for (std::size_t slice = 0; slice <= num_slices_; ++slice) begins[slice] += part.begins[slice];
  }
  Records records;
  records.ids.resize(begins.back());
  records.tables.resize(begins.back());
  if (columns == Columns::kCounts) records.counts.resize(begins.back());
  workers.run(num_slices_, [&](std::size_t slice) {
    std::size_t i = begins[slice];
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
    auto const mine = all.subspan(part.begins[slice], part.begins[slice + 1] - part.begins[slice]);
    keys.insert(keys.end(), mine.begin(), mine.end());
  }
  std::ranges::sort(keys, {}, [](ListedKey const& key) { return std::tuple(key.bucket, key.table, key.id); });
  return keys;
}

}  // namespace headway::embedding
