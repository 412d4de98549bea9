// SPDX-License-Identifier: Apache-2.0

// Detection of overlapping calls. An endpoint has no locks: its contract says that calls do not overlap, apart from a
// few that are named. The guard finds callers that break it, at the cost of one compare-and-swap per call.

#pragma once

#include "headway/comm/status.hpp"

#include <atomic>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

namespace headway::comm {

/// Detects overlapping calls on one object: from two threads, or poll() inside poll().
class CallGuard {
 public:
  class Scope;

 private:
  std::atomic<char const*> running_{nullptr};
  std::atomic<std::thread::id> owner_{};  ///< Reset before running_, so that it never names an earlier owner.
};

/// Held for the duration of one call. Inside poll(), a sink may call anything except poll().
class CallGuard::Scope {
 public:
  /// @throws UsageError naming both calls if they overlap. `call` is a literal.
  Scope(CallGuard& guard, char const* call) : guard_(guard) {
    // The scope guards calls that only read too: they could see a half-made change of another thread.
    char const* running = nullptr;
    if (guard_.running_.compare_exchange_strong(running, call)) {
      guard_.owner_ = std::this_thread::get_id();
      outermost_ = true;
      return;
    }
    if (guard_.owner_.load() != std::this_thread::get_id()) {
      throw UsageError(std::string(call) + "() overlaps " + running + "() of another thread");
    }
    expects(std::string_view(call) != "poll", "poll() was called from inside poll()");
  }
  ~Scope() {
    if (outermost_) {
      guard_.owner_ = std::thread::id();
      guard_.running_ = nullptr;
    }
  }
  Scope(Scope const&) = delete;
  Scope& operator=(Scope const&) = delete;

 private:
  CallGuard& guard_;
  bool outermost_ = false;
};

}  // namespace headway::comm
