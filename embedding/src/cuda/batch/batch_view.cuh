// SPDX-License-Identifier: Apache-2.0

// Batches as kernels see them.
//
// The number of keys may be known to the device only, after a deduplication whose result the host did not wait for. A
// launch then covers the upper bound (DeviceCount::most), and threads at or beyond the number return or write neutral
// values. Example: a batch of 1,000 keys has 400 unique ones. The next kernel runs with 1,000 threads, of which 600
// find i >= size().

#pragma once

#include "headway/embedding/key.hpp"
#include "headway/embedding/table.hpp"

#include <cstddef>
#include <cstdint>

namespace headway::embedding {

/// A number that may be known to the device only.
struct DeviceCount {
  std::uint32_t most = 0;                ///< Upper bound, known to the host.
  std::uint32_t const* known = nullptr;  ///< The number, in device memory; nullptr: it is `most`.

  [[nodiscard]] __device__ std::uint32_t operator()() const { return known == nullptr ? most : min(*known, most); }
};

struct KeysView {
  std::uint64_t const* ids;     ///< (keys)
  std::uint32_t const* tables;  ///< (keys) nullptr: all keys are of `table`.
  std::uint32_t table;
  std::uint32_t const* counts;  ///< (keys) Lookups per key; nullptr: `default_count` each.
  std::uint32_t default_count;
  DeviceCount size;  ///< Number of keys.

  [[nodiscard]] __device__ Key key(std::uint32_t i) const {
    return {.id = __ldg(ids + i), .table = tables == nullptr ? table : __ldg(tables + i)};
  }
  [[nodiscard]] __device__ std::uint32_t count(std::uint32_t i) const {
    return counts == nullptr ? default_count : __ldg(counts + i);
  }
};

/// View of a batch of less than 2^32 keys. @param default_count lookups per key if `keys` has no counts
inline KeysView view_of(Keys const& keys, std::uint32_t default_count = 1) {
  return {.ids = keys.ids.data(),
          .tables = keys.tables.empty() ? nullptr : keys.tables.data(),
          .table = keys.table,
          .counts = keys.counts.empty() ? nullptr : keys.counts.data(),
          .default_count = default_count,
          .size = {.most = static_cast<std::uint32_t>(keys.size()), .known = keys.num_known}};
}

}  // namespace headway::embedding
