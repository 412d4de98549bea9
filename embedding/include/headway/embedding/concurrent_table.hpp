// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/embedding/table.hpp"

#include <memory>
#include <span>

namespace headway::embedding {

/// A table whose rows several threads read and train at the same time, as those of a parameter server.
///
/// Threads: read(), read_or_insert(), update_keys(), begin_step(), size() and statistics() may overlap with each other.
/// A row is read and written as a whole: no reader sees half an update. Any other call must not overlap with them.
class ConcurrentTable : public Table {
 public:
  /// Fused find() and gather(). Counts nothing.
  /// @param out (keys.size(), dim())
  /// @param statuses (keys.size()), or empty
  /// @throws base::UsageError if sizes do not agree; likewise below
  virtual void read(Keys const& keys, std::span<float> out, std::span<KeyStatus> statuses) const = 0;
  /// Fused find_or_insert() and gather(). If several calls ask for the last rows at the same time, any of them gets
  /// them; among the keys of a call those that come first do.
  /// @param out (keys.size(), dim())
  virtual void read_or_insert(Keys const& keys, std::span<float> out) = 0;
  /// Fused find() and update().
  /// @param keys unique
  /// @param gradients (keys.size(), dim())
  virtual void update_keys(Keys const& keys, std::span<float const> gradients, kernels::OptimizerStep const& step) = 0;
};

/// A table in host memory.
/// @throws base::UsageError for options out of range
[[nodiscard]] std::unique_ptr<ConcurrentTable> make_concurrent_table(TableOptions const& options);

}  // namespace headway::embedding
