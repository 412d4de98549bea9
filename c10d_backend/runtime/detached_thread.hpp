// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "torch_headers.hpp"

#include <pthread.h>

#include <system_error>
#include <thread>
#include <utility>

namespace headway::c10d_backend {

/// Runs `function` in a thread that is never joined. `name`: a literal of at most 15 characters, which the thread reads
/// later.
/// @throws c10::DistBackendError, with no effect, if the system cannot start a thread.
/// A thread is detached where it may wait for other ranks longer than its owner lives. An ExitHook then bounds how
/// long the program's end waits for it.
template <typename Function>
void start_detached(char const* name, Function function) {
  try {
    std::thread([name, function = std::move(function)]() mutable {
      pthread_setname_np(pthread_self(), name);
      function();
    }).detach();
  } catch (std::system_error const& error) {
    TORCH_CHECK_WITH(DistBackendError, false, "headway: a thread could not be started: ", error.what(),
                     "; the limits are those of ulimit -u, ulimit -v and the control group's pids.max");
  }
}

}  // namespace headway::c10d_backend
