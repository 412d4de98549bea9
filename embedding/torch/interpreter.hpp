// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

namespace headway::embedding {

/// The Python interpreter of this process, for calls that wait. This library does not link Python: headway._embedding
/// sets the functions when it is imported. In a C++ process they stay empty, and nothing happens.
struct Interpreter {
  /// Releases the global interpreter lock until the result is destroyed. Null if this thread does not hold it.
  std::shared_ptr<void> (*release_lock)() = nullptr;
  /// Runs Python's signal handlers, so that Ctrl-C ends a wait. @throws what a handler raises
  void (*run_signal_handlers)() = nullptr;
};

/// Set before any other call of this library, and not changed later.
[[nodiscard]] Interpreter& interpreter();

}  // namespace headway::embedding
