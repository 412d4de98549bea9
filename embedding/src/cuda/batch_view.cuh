#pragma once

#include "headway/embedding/key.hpp"
#include "headway/embedding/table.hpp"

#include <cstdint>

namespace headway::embedding {

/// How many there are of something: what the host says, or less where only the device knows.
struct DeviceCount {
  std::uint32_t most = 0;
  std::uint32_t const* known = nullptr;  ///< Device; none: `most`.

  [[nodiscard]] __device__ std::uint32_t operator()() const { return known == nullptr ? most : min(*known, most); }
};

/// Keys, as kernels see them.
struct BatchView {
  std::uint64_t const* ids;     ///< Device.
  std::uint32_t const* tables;  ///< Device; none: `table` is that of all.
  std::uint32_t table;
  DeviceCount size;

  /// Of less than 2^31 keys.
  explicit BatchView(Keys const& keys)
      : ids(keys.ids.data()),
        tables(keys.tables.empty() ? nullptr : keys.tables.data()),
        table(keys.table),
        size{.most = static_cast<std::uint32_t>(keys.size()), .known = keys.num_known} {}

  [[nodiscard]] __device__ Key operator[](std::uint32_t i) const {
    return {.id = ids[i], .table = tables == nullptr ? table : tables[i]};
  }
};

}  // namespace headway::embedding
