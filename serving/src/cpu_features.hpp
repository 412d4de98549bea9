// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace headway::serving {

/// Looks for an architecture, and for extensions of the instruction set by the names that Linux gives them.
/// headway.serving.cpu_features (Python) lists those that a package needs.
/// @returns those of `wanted` that this machine lacks
[[nodiscard]] std::vector<std::string> missing_cpu_features(std::span<std::string const> wanted,
                                                            std::filesystem::path const& cpuinfo = "/proc/cpuinfo");

}  // namespace headway::serving
