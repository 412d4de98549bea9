#pragma once

#include "headway/comm/group.hpp"

#include <string>

namespace headway::comm {

/// Name of an element type for error messages: `name(type)`, or the number if there is no such function.
inline std::string text_of(DataType type, DataTypeName name) {
  return name == nullptr ? "type " + std::to_string(type) : name(type);
}

}  // namespace headway::comm
