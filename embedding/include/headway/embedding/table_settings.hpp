// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/thread_pool.hpp"
#include "headway/embedding/features.hpp"
#include "headway/embedding/sharded_table.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace headway::embedding {

/// Options of a table by their Python names. Fields mean the same as in TableOptions. An empty optional is unlimited,
/// except for `eviction_batch`: 128 rows for a CPU table, unless it evicts by count and rows expire; else unlimited.
struct TableSettings {
  std::size_t dim = 0;
  Initializer initializer = Initializer::constant(0);
  kernels::OptimizerOptions optimizer{};
  std::optional<std::size_t> max_rows{};  ///< Rows of this rank; beyond, insertions evict others or are refused.
  std::string eviction = "none";          ///< Or lru, lfu.
  std::optional<std::size_t> high_water{}, low_water{};  ///< Rows above which a step evicts, and down to which.
  std::optional<std::size_t> eviction_batch{};           ///< Most rows that one eviction removes.
  std::uint32_t time_to_live = 0;            ///< Steps without a lookup after which a row expires; 0: never.
  std::uint32_t min_count = 1;               ///< Lookups after which a key gets a row.
  std::optional<std::size_t> max_pending{};  ///< Most keys that are counted but have no row yet.
  std::uint32_t hot_count = 0;               ///< Rows with fewer lookups store their embedding in bfloat16.
  std::shared_ptr<base::ThreadPool> thread_pool{};
};

/// @param is_on_host for a CPU table; false: for one on a CUDA device
/// @throws base::UsageError if a name is unknown; likewise below
[[nodiscard]] TableOptions options_of(TableSettings const& settings, bool is_on_host);
/// @param name constant, uniform (from `first` to `second`) or normal (mean `first`, deviation `second`)
[[nodiscard]] Initializer initializer_of(std::string const& name, double first, double second, std::uint64_t seed);
/// @param name sgd, adagrad, row_wise_adagrad, adam or row_wise_adam
[[nodiscard]] kernels::OptimizerKind optimizer_of(std::string const& name);
/// @param name stage that removes duplicate keys: none, first (before keys are sent), second (at their owner) or both
[[nodiscard]] Dedup dedup_of(std::string const& name);
/// @param name sum, mean, or none for an embedding per id
[[nodiscard]] Pooling pooling_of(std::optional<std::string> const& name);

}  // namespace headway::embedding
