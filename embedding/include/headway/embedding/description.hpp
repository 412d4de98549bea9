// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/embedding/sharded_table.hpp"

#include <span>
#include <string>

namespace headway::embedding {

/// Text of all that the ranks of a ShardedTable must have in common: tables, widths, initial values, optimizers, rules
/// of admission and expiry, and where duplicates are removed. Limits on rows may differ between ranks.
[[nodiscard]] std::string describe(std::span<MergedTable const> tables, Dedup dedup);

}  // namespace headway::embedding
