// SPDX-License-Identifier: Apache-2.0

#include "interpreter.hpp"

namespace headway::embedding {

Interpreter& interpreter() {
  static Interpreter instance;
  return instance;
}

}  // namespace headway::embedding
