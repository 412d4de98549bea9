// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace headway::c10d_backend {

/// An object with a thread that may free what Python owns. It must end before the interpreter does.
///
/// After that, CPython (before 3.14) unwinds a thread that takes the interpreter lock. If it unwinds through a noexcept
/// frame, the process aborts.
class ExitHook {
 public:
  using Deadline = std::chrono::steady_clock::time_point;
  /// Hooks end in this order, because a hook creates work for those behind it.
  enum class Order {
    kGroup,       ///< Groups.
    kReductions,  ///< Backends that reduce for groups (Gloo), and the watchdogs of reductions.
    kCallbacks,   ///< Completion threads.
  };

  ExitHook() = default;
  ExitHook(ExitHook const&) = delete;
  ExitHook& operator=(ExitHook const&) = delete;
  virtual ~ExitHook() = default;

  [[nodiscard]] virtual Order order() const = 0;
  /// Delivers started messages. @returns a description of those not delivered by `deadline`; empty if all were.
  virtual std::string deliver(Deadline /*deadline*/) { return {}; }
  /// Starts to end, without blocking.
  virtual void leave() {}
  /// @returns whether its threads have ended by `deadline`, or will touch nothing that Python owns.
  [[nodiscard]] virtual bool end(Deadline deadline) = 0;
};

/// Registers `hook` to end with the program. A forked child ends only the hooks that it registered itself.
/// @throws comm::UsageError once the program is ending.
void register_exit_hook(std::shared_ptr<ExitHook> const& hook);

/// Ends all hooks. For an exit handler of Python that has released the interpreter lock.
/// @param delivery_time Limit for messages that peers have not taken yet, for all groups together.
/// @param end_time Limit for threads. A thread that has not ended then stays. If CPython unwinds it later, it stops for
/// good instead of aborting the process.
void run_exit_hooks(std::chrono::milliseconds delivery_time, std::chrono::milliseconds end_time);

/// Keeps `object` until the process ends, without destroying it.
void keep_forever(std::shared_ptr<void> object);

}  // namespace headway::c10d_backend
