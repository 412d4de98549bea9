// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

#include <csignal>

namespace headway::hybrid {

/// SIGTERM and SIGINT end a role. Blocks them in this thread and those that it starts.
inline sigset_t block_end_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

/// @returns the signal
inline int await_end(sigset_t const& signals) {
  int signal = 0;
  sigwait(&signals, &signal);
  return signal;
}

}  // namespace headway::hybrid
