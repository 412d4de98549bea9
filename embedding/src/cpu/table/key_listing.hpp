// SPDX-License-Identifier: Apache-2.0

// Sorted listing of keys for checkpoints: a counting sort into slices, then a sort of each slice.
//
// Idea: keys are found in parts, one for each stripe of the table (stripe_map.hpp). A virtual bucket is one of 2^14
// hash ranges by which keys are spread over ranks (routing.hpp). The range of virtual buckets is cut into at most 256
// slices. put() distributes a part to the slices by a counting sort. sorted() then collects each slice from all parts
// and sorts it by (bucket, table, id). A slice fits a cache and belongs to one thread.
//
// Example: buckets 0 to 3 in two slices (0 and 1, 2 and 3). Part A has keys of buckets 3 and 0, part B of 1 and 2.
//   After put(): A = {0 | 3}, B = {1 | 2}. Slice 0 sorts {0, 1}, slice 1 sorts {3, 2}: the listing is 0, 1, 2, 3.
//
// Invariants: slices are in the order of their buckets, so sorted slices follow each other in the result.
//   The result depends neither on the number of parts nor on the number of threads.
// Complexity: O(n) for the distribution, O(n log(n / slices)) for the sorts. 24 bytes for each key.

#pragma once

#include "headway/base/thread_pool.hpp"
#include "headway/embedding/table.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace headway::embedding {

/// A key with its virtual bucket. `count`: lookups so far if the key is pending (it gets a row only after
/// TableOptions::min_count lookups), else 0.
struct ListedKey {
  std::uint32_t bucket, table;
  std::uint64_t id;
  std::uint32_t count;
};

/// Sorts the keys of several parts by (bucket, table, id).
class KeyListing {
 public:
  /// For the keys of virtual buckets [first_bucket, end_bucket).
  KeyListing(std::uint32_t first_bucket, std::uint32_t end_bucket, std::size_t num_parts);

  [[nodiscard]] bool wants(std::uint32_t bucket) const { return bucket >= first_bucket_ && bucket < end_bucket_; }
  /// Stores all keys of a part; each must satisfy wants(). Called once for each part; calls for different parts may
  /// overlap.
  void put(std::size_t part, std::span<ListedKey const> keys);
  /// Columns that sorted() fills: ids and tables, and with kCounts counts too.
  enum class Columns { kKeys, kCounts };
  [[nodiscard]] Records sorted(base::ThreadPool& thread_pool, Columns columns) const;

 private:
  struct Part {
    std::vector<ListedKey> keys;       ///< Ordered by slice.
    std::vector<std::size_t> offsets;  ///< (slices + 1) First key of each slice.
  };

  [[nodiscard]] std::size_t slice_of(ListedKey const& key) const { return (key.bucket - first_bucket_) / width_; }
  [[nodiscard]] std::vector<ListedKey> sorted_slice(std::size_t slice) const;

  std::uint32_t first_bucket_, end_bucket_, width_;  ///< `width_`: buckets of a slice.
  std::size_t num_slices_;
  std::vector<Part> parts_;
};

}  // namespace headway::embedding
