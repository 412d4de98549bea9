// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/thread_pool.hpp"
#include "headway/embedding/pairwise_lookup.hpp"
#include "headway/serving/package.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

namespace headway::serving {

/// Tables of a package that share storage, as they have equal settings.
struct MergedTables {
  std::vector<std::size_t> merged_of;   ///< (tables of the manifest) Index into the others.
  std::vector<std::size_t> dims;        ///< (merged tables)
  std::vector<std::size_t> feature_of;  ///< (features) The features of the first merged table, then those of the next.
};

/// Finds the tables of a package that share storage. The same on all ranks.
[[nodiscard]] MergedTables merge_tables(Manifest const& manifest);

/// Reads the rows that a rank owns.
/// @param folder of the package
/// @returns (merged tables)
/// @throws PackageError that names the file
[[nodiscard]] std::vector<embedding::ReadTable> read_tables(Manifest const& manifest,
                                                            std::filesystem::path const& folder, int rank,
                                                            int num_ranks,
                                                            std::shared_ptr<base::ThreadPool> const& thread_pool);

}  // namespace headway::serving
