// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/serving/dense_model.hpp"
#include "headway/serving/package.hpp"

#include <filesystem>
#include <memory>

namespace headway::serving {

/// Loads the parts of a package that AOTInductor has compiled. They are machine code, which runs in this process: use
/// packages from folders that nobody else can write to.
/// @param num_threads of the operators of a part on a CPU; 1 or more
/// @param cuda_device index of the device for parts that are compiled for CUDA. A batch's inputs are copied there, and
///   its outputs back
/// @throws PackageError if another version of torch has compiled them, or one cannot be loaded, or this machine lacks
///   the device or a part of the instruction set
[[nodiscard]] std::shared_ptr<DenseModel> load_compiled_model(Manifest const& manifest,
                                                              std::filesystem::path const& folder, int num_threads,
                                                              int cuda_device = 0);

}  // namespace headway::serving
