// SPDX-License-Identifier: Apache-2.0
#include "request_log.hpp"

#include "headway/base/status.hpp"
#include "request_tensors.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <fstream>

namespace headway::serving {

namespace {

using nlohmann::json;

/// The features or dense features of a line.
json const& part_of(json const& line, char const* name) {
  static json const kNone = json::object();
  auto const found = line.find(name);
  return found == line.end() ? kNone : *found;
}

inference::ModelInferRequest request_of(json const& line, Manifest const& manifest, std::string const& model_name) {
  inference::ModelInferRequest request;
  request.set_model_name(model_name);
  if (line.contains("items")) add_lengths(request, "items", line.at("items").get<std::vector<std::int32_t>>());
  auto const& features = part_of(line, "features");
  for (auto const& feature : manifest.features) {
    std::vector<std::int64_t> ids;
    std::vector<std::int32_t> lengths;
    for (auto const& list : features.at(feature.name)) {
      for (auto const& id : list) ids.push_back(id.get<std::int64_t>());
      lengths.push_back(static_cast<std::int32_t>(list.size()));
    }
    add_ids(request, feature.name, ids);
    add_lengths(request, feature.name + ".lengths", lengths);
  }
  auto const& dense = part_of(line, "dense");
  for (auto const& feature : manifest.dense_features) {
    std::vector<float> values;
    for (auto const& row : dense.at(feature.name)) {
      for (auto const& value : row) values.push_back(value.get<float>());
    }
    add_dense(request, feature.name, values, feature.width);
  }
  return request;
}

}  // namespace

RequestLog read_request_log(std::filesystem::path const& path, Manifest const& manifest,
                            std::string const& model_name) {
  std::ifstream file(path);
  if (!file) throw base::SystemError("opening a log of requests", errno, path.string());
  RequestLog log;
  std::size_t number = 0;
  for (std::string text; std::getline(file, text);) {
    ++number;
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      auto const line = json::parse(text);
      log.requests.push_back(request_of(line, manifest, model_name));
      if (line.contains("at_ms")) {
        log.times.push_back(std::chrono::duration_cast<std::chrono::nanoseconds>(
            std::chrono::duration<double, std::milli>(line.at("at_ms").get<double>())));
      }
    } catch (json::exception const& error) {
      throw base::UsageError(path.string() + ", line " + std::to_string(number) + ": " + error.what());
    }
    base::expects(log.times.empty() || log.times.size() == log.requests.size(),
                  path.string() + ", line " + std::to_string(number) + ": either all lines have at_ms, or none");
    base::expects(log.times.size() < 2 || log.times.back() >= log.times[log.times.size() - 2],
                  path.string() + ", line " + std::to_string(number) + ": at_ms is before that of the line above");
  }
  base::expects(!log.requests.empty(), path.string() + " has no requests");
  if (!log.times.empty()) {
    auto const first = log.times.front();
    for (auto& time : log.times) time -= first;
  }
  return log;
}

}  // namespace headway::serving
