#pragma once

#include "headway/comm/status.hpp"
#include "headway/embedding/table.hpp"

#include <cstddef>
#include <string>

namespace headway::embedding {

/// @throws comm::UsageError unless there are as many `what` as keys, and one table for each key or for all
inline void expect_one_each(Keys const& keys, std::size_t count, char const* what) {
  if (count == keys.size() && (keys.tables.empty() || keys.tables.size() == keys.size())) return;
  throw comm::UsageError(std::to_string(keys.size()) + " keys have " + std::to_string(count) + " " + what + " and " +
                         std::to_string(keys.tables.size()) + " tables");
}

/// @throws comm::UsageError unless there are `width` values for each key
inline void expect_values(Keys const& keys, std::size_t num_values, std::size_t width, char const* what) {
  if (num_values == keys.size() * width) return;
  throw comm::UsageError(std::string(what) + ": " + std::to_string(num_values) + " values for " +
                         std::to_string(keys.size()) + " keys of " + std::to_string(width));
}

}  // namespace headway::embedding
