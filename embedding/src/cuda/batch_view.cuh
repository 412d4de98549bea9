#pragma once

#include "headway/embedding/key.hpp"
#include "headway/embedding/table.hpp"

#include <cstddef>
#include <cstdint>

namespace headway::embedding {

/// How many there are of something: what the host says, or less where only the device knows.
struct DeviceCount {
  std::uint32_t most = 0;
  std::uint32_t const* known = nullptr;  ///< On the device; none: `most`.

  [[nodiscard]] __device__ std::uint32_t operator()() const { return known == nullptr ? most : min(*known, most); }
};

/// The keys of a batch, as kernels see them.
struct KeysView {
  std::uint64_t const* ids;
  std::uint32_t const* tables;  ///< nullptr: `table` for all.
  std::uint32_t table;
  std::uint32_t const* counts;  ///< nullptr: `otherwise` for all.
  std::uint32_t otherwise;
  DeviceCount size;

  [[nodiscard]] __device__ Key key(std::uint32_t i) const {
    return {.id = __ldg(ids + i), .table = tables == nullptr ? table : __ldg(tables + i)};
  }
  [[nodiscard]] __device__ std::uint32_t count(std::uint32_t i) const {
    return counts == nullptr ? otherwise : __ldg(counts + i);
  }
};

/// Of less than 2^32 keys.
inline KeysView view_of(Keys const& keys, std::uint32_t otherwise = 1) {
  return {.ids = keys.ids.data(),
          .tables = keys.tables.empty() ? nullptr : keys.tables.data(),
          .table = keys.table,
          .counts = keys.counts.empty() ? nullptr : keys.counts.data(),
          .otherwise = otherwise,
          .size = {.most = static_cast<std::uint32_t>(keys.size()), .known = keys.num_known}};
}

}  // namespace headway::embedding
