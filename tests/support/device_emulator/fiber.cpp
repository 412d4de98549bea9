// SPDX-License-Identifier: Apache-2.0

// Fibers are functions with a stack of their own that stop in the middle and go on later: threads of kernels. A block
// of 1,024 threads would be too much for threads of the host, and their order would differ from run to run.
//
// resume() and stop() switch between two stacks with _setjmp and _longjmp. _setjmp returns twice: 0 when it saves the
// point of execution, and 1 when somebody jumps there. So "if it was 0, jump to the other side" switches the stack, and
// the function goes on behind it when the other side jumps back.
//
// The lowest bytes of a stack hold a guard word. A body that overruns its stack overwrites it, which the next switch
// reports. An exception must not leave a fiber's stack, so it is carried over and thrown again by resume().

// The checked longjmp would report the change of stacks as an error.
#undef _FORTIFY_SOURCE
#include "fiber.hpp"

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace headway::device_emulator {
namespace {

/// Any number that a body will hardly store by accident.
constexpr std::uint64_t kGuard = 0x5afe57ac45afe57a;

}  // namespace

void Fiber::prepare(std::span<std::byte> stack, std::function<void()> body) {
  stack_ = stack;
  body_ = std::move(body);
  is_started_ = is_done_ = false;
  std::memcpy(stack_.data(), &kGuard, sizeof kGuard);
}

// ucontext only sets up the stack. Its switches enter the kernel; those of setjmp do not.
void Fiber::resume() {
  if (_setjmp(outside_) == 0) {
    if (is_started_) _longjmp(inside_, 1);
    is_started_ = true;
    getcontext(&start_);
    start_.uc_stack.ss_sp = stack_.data();
    start_.uc_stack.ss_size = stack_.size();
    start_.uc_link = nullptr;
    auto const address = reinterpret_cast<std::uintptr_t>(this);
    makecontext(&start_, reinterpret_cast<void (*)()>(&Fiber::enter), 2, static_cast<unsigned>(address >> 32),
                static_cast<unsigned>(address));
    setcontext(&start_);
  }
  check_stack();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

// Called on the fiber's stack. The next resume() continues after _setjmp.
void Fiber::stop() {
  if (_setjmp(inside_) == 0) _longjmp(outside_, 1);
}

// makecontext() passes only integers, so the pointer comes in two halves.
void Fiber::enter(unsigned high, unsigned low) {
  reinterpret_cast<Fiber*>(static_cast<std::uintptr_t>(high) << 32 | low)->run();
}

void Fiber::run() {
  try {
    body_();
  } catch (...) {
    error_ = std::current_exception();
  }
  is_done_ = true;
  _longjmp(outside_, 1);
}

void Fiber::check_stack() const {
  std::uint64_t guard = 0;
  std::memcpy(&guard, stack_.data(), sizeof guard);
  if (guard != kGuard) throw std::logic_error("a thread of a kernel overran its stack in the emulator");
}

}  // namespace headway::device_emulator
