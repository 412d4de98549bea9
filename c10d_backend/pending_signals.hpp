#pragma once

#include "torch_headers.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>

namespace headway::c10d_backend {

/// Longest wait between two checks for Ctrl-C.
inline constexpr std::chrono::milliseconds kSignalSlice{200};

/// Runs Python's signal handlers on the main thread, the only one on which Python runs them.
/// @throws the handler's exception, by default KeyboardInterrupt.
inline void raise_pending_signals() {
  if (static_cast<pid_t>(syscall(SYS_gettid)) != getpid() || !Py_IsInitialized()) return;
  pybind11::gil_scoped_acquire const acquired;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

}  // namespace headway::c10d_backend
