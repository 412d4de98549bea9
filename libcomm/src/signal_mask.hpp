#pragma once

#include <csignal>

namespace headway::comm {

/// Blocks all signals of the calling thread during its lifetime. Threads started meanwhile inherit the mask, so that
/// signals go to the program's own threads.
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
