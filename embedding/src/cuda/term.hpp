#pragma once

#include <cstdint>

namespace headway::embedding {

/// A term of a sum: weight times a row of values.
struct Term {
  std::uint32_t row = 0;
  float weight = 1;
};

}  // namespace headway::embedding
