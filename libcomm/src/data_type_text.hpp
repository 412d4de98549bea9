#pragma once

#include "headway/comm/group.hpp"

#include <string>

namespace headway::comm {

/// An element type for error messages: by the name that the group's owner has for it, else as a number.
inline std::string text_of(DataType type, DataTypeName name) {
  return name == nullptr ? "type " + std::to_string(type) : name(type);
}

}  // namespace headway::comm
