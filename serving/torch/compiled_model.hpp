// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/serving/dense_model.hpp"
#include "headway/serving/package.hpp"

#include <filesystem>
#include <memory>

namespace headway::serving {

/// Loads the parts of a package that AOTInductor has compiled. They are machine code, which runs in this process: use
/// packages from folders that nobody else can write to.
/// @param num_threads of the operators of a part; 1 or more
/// @throws PackageError if another version of torch has compiled them, or one cannot be loaded
[[nodiscard]] std::shared_ptr<DenseModel> load_compiled_model(Manifest const& manifest,
                                                              std::filesystem::path const& folder, int num_threads);

}  // namespace headway::serving
