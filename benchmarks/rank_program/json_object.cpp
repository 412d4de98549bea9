// SPDX-License-Identifier: Apache-2.0
#include "json_object.hpp"

#include <cmath>
#include <cstdio>

namespace headway::benchmarks {

namespace {

/// Nine digits, which tell any two float32 numbers apart. JSON has no infinities and no NaN: they become null.
std::string number_text(double value) {
  if (!std::isfinite(value)) return "null";
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

}  // namespace

JsonObject& JsonObject::add(std::string_view name, std::string_view text) {
  std::string quoted = "\"";
  quoted += text;
  quoted += '"';
  return add_raw(name, quoted);
}

JsonObject& JsonObject::add(std::string_view name, double value) { return add_raw(name, number_text(value)); }

JsonObject& JsonObject::add(std::string_view name, std::span<double const> values) {
  std::string list = "[";
  for (double const value : values) {
    if (list.size() > 1) list += ", ";
    list += number_text(value);
  }
  list += ']';
  return add_raw(name, list);
}

JsonObject& JsonObject::add(std::string_view name, JsonObject const& object) { return add_raw(name, object.text()); }

JsonObject& JsonObject::add_raw(std::string_view name, std::string_view value) {
  if (!members_.empty()) members_ += ", ";
  members_ += '"';
  members_ += name;
  members_ += "\": ";
  members_ += value;
  return *this;
}

// Flushed at once: a run that is stopped later has written all points that it finished.
void print_point(JsonObject const& point) {
  std::printf("%s\n", point.text().c_str());
  std::fflush(stdout);
}

}  // namespace headway::benchmarks
