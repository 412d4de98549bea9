// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

namespace headway {

/// Waits for the end of a child process. A child that does not end within `limit` is killed, so it cannot hang its
/// test.
/// @returns the child's wait status: 0 if it exited with 0, SIGKILL if it was killed here.
inline int wait_for_exit(pid_t child, std::chrono::seconds limit = std::chrono::seconds(60)) {
  auto const deadline = std::chrono::steady_clock::now() + limit;
  int status = -1;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) ::kill(child, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return status;
}

}  // namespace headway
