// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>

namespace headway::comm {

/// Blocks all signals of the calling thread during its lifetime. Threads started meanwhile inherit the mask, so that
/// signals go to the program's own threads: a handler of Python or of a launcher does not expect to run on a thread
/// that it never started, and a signal would end system calls of the library's threads early (EINTR).
///
/// Create and destroy it on the same thread.
class BlockedSignals final {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(BlockedSignals const&) = delete;
  BlockedSignals& operator=(BlockedSignals const&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace headway::comm
