#pragma once

#include <cstdint>

namespace headway::embedding {

/// A row that is to be added to a sum.
struct Term {
  std::uint32_t row = 0;
  float weight = 1;
};

}  // namespace headway::embedding
