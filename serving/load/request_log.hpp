// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/serving/package.hpp"
#include "open_inference.pb.h"

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace headway::serving {

/// Requests of a log, and when each came.
struct RequestLog {
  std::vector<inference::ModelInferRequest> requests{};
  std::vector<std::chrono::nanoseconds> times{};  ///< Ascending, from the first; empty if the log has none.
};

/// Reads a log: one request per line, in JSON. The line
///
///   {"at_ms": 12.5, "items": [2], "features": {"user": [[7]], "item": [[11, 12]]}, "dense": {"price": [[0.5], [1.5]]}}
///
/// has a list of ids for each user or item of a feature, and the values of each. `items` is left out for models without
/// users. `at_ms` is left out in all lines or in none.
/// @throws base::UsageError that names the line; base::SystemError if the file cannot be read
[[nodiscard]] RequestLog read_request_log(std::filesystem::path const& path, Manifest const& manifest,
                                          std::string const& model_name);

}  // namespace headway::serving
