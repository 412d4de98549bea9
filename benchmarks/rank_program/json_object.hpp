// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace headway::benchmarks {

/// Builds one JSON object on one line. Names and texts must not need escapes.
class JsonObject {
 public:
  JsonObject& add(std::string_view name, std::string_view text);
  JsonObject& add(std::string_view name, double value);
  JsonObject& add(std::string_view name, std::span<double const> values);
  JsonObject& add(std::string_view name, JsonObject const& object);
  template <std::integral Integer>
  JsonObject& add(std::string_view name, Integer value) {
    return add_raw(name, std::to_string(value));
  }
  [[nodiscard]] std::string text() const { return "{" + members_ + "}"; }

 private:
  JsonObject& add_raw(std::string_view name, std::string_view value);
  std::string members_;
};

/// Prints a point, the result of one measurement, as one line on stdout.
void print_point(JsonObject const& point);

}  // namespace headway::benchmarks
