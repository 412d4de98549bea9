// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "torch_headers.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <optional>

namespace headway::c10d_backend {

/// Releases the interpreter lock for its lifetime, if the calling thread holds it.
///
/// PyTorch calls backends both with and without the lock, so a plain gil_scoped_release would be wrong half of the
/// time. A thread that waits for a peer with the lock held would stop all other threads of Python, perhaps those that
/// the peer waits for.
class ReleasedGil final {
 public:
  ReleasedGil() {
    if (Py_IsInitialized() && PyGILState_Check()) released_.emplace();
  }

 private:
  std::optional<pybind11::gil_scoped_release> released_;
};

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
