// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ucontext.h>

#include <csetjmp>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <span>

namespace headway::device_emulator {

/// A function that runs on a stack of its own and may stop in the middle. All fibers run on one thread of the host.
class Fiber {
 public:
  Fiber() = default;
  Fiber(Fiber const&) = delete;
  Fiber& operator=(Fiber const&) = delete;

  /// Prepares `body` to run on `stack`. An earlier body on it is dropped without running destructors.
  void prepare(std::span<std::byte> stack, std::function<void()> body);
  /// Continues the body until it stops or ends.
  /// @throws the exception of the body.
  void resume();
  /// Called by the body: returns to the caller of resume().
  void stop();
  [[nodiscard]] bool is_done() const { return is_done_; }

 private:
  static void enter(unsigned high, unsigned low);
  void run();
  void check_stack() const;

  std::span<std::byte> stack_{};
  std::function<void()> body_{};
  std::exception_ptr error_{};
  bool is_started_ = false, is_done_ = true;
  ucontext_t start_{};
  /// The points at which the body goes on at the next resume(), and resume() goes on when the body stops.
  std::jmp_buf inside_{}, outside_{};
};

}  // namespace headway::device_emulator
