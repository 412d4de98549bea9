#pragma once

#include "cpu/worker_pool.hpp"
#include "headway/embedding/table.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace headway::embedding {

/// A key with its virtual bucket, and its count if it waits for a row.
struct ListedKey {
  std::uint32_t bucket, table;
  std::uint64_t id;
  std::uint32_t count;
};

/// Puts keys that are found in parts into the order of buckets, tables and ids. A part falls into slices of the
/// buckets by counting, and each slice of all parts is sorted by itself: in a cache, by one of the workers.
class KeyListing {
 public:
  KeyListing(std::uint32_t first_bucket, std::uint32_t end_bucket, std::size_t num_parts);

  [[nodiscard]] bool wants(std::uint32_t bucket) const { return bucket >= first_bucket_ && bucket < end_bucket_; }
  /// All keys of a part, of buckets that it wants. Calls for different parts may overlap.
  void put(std::size_t part, std::span<ListedKey const> keys);
  /// Ids and tables, and with `Columns::kCounts` counts, of all parts.
  enum class Columns { kKeys, kCounts };
  [[nodiscard]] Records sorted(WorkerPool& workers, Columns columns) const;

 private:
  struct Part {
    std::vector<ListedKey> keys;      ///< Slice by slice.
    std::vector<std::size_t> begins;  ///< (slices + 1)
  };

  [[nodiscard]] std::size_t slice_of(ListedKey const& key) const { return (key.bucket - first_bucket_) / width_; }
  [[nodiscard]] std::vector<ListedKey> sorted_slice(std::size_t slice) const;

  std::uint32_t first_bucket_, end_bucket_, width_;
  std::size_t num_slices_;
  std::vector<Part> parts_;
};

}  // namespace headway::embedding
