// SPDX-License-Identifier: Apache-2.0

// Orderly end of threads before the Python interpreter ends.
//
// Problem: CPython (before 3.14) ends a thread that takes the interpreter lock during exit by unwinding its stack. An
// unwinding that meets a noexcept frame calls std::terminate().
//
// Idea: every object with such a thread registers as an ExitHook. Python's exit handler calls run_exit_hooks(), which
// delivers messages, tells all hooks to leave, and waits for their threads, each step in the order kGroup, kReductions,
// kCallbacks. A terminate handler catches threads that are still running: they sleep for ever.
//
// Example: a group has a pending all_reduce. deliver() sends the group's messages. leave() ends the group, so its
// operations complete with an error; the delegate drops its backend in a thread. end() then waits for the delegate's
// threads, and last for the completion thread, which runs the callbacks of both.
//
// Invariants:
// - After the registry has ended, register_exit_hook() throws, so no new hook can appear.
// - Entries are weak: registration keeps no hook alive. Objects that must outlive their threads go to keep_forever().
// - The mutex is held during fork(), so a child can exit even if another thread was in here.
// - The terminate handler is set when the registry is made, long before the exit.
// Complexity: O(hooks); expired entries are dropped when the registry has doubled since the last time.
// Source: CPython's C API documentation, section on runtime finalization.

#include "runtime/exit_hooks.hpp"

#include <headway/comm/status.hpp>

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace headway::c10d_backend {

namespace {

struct Entry {
  std::weak_ptr<ExitHook> hook;
  pid_t owner;  ///< Process that registered the hook.
};

/// State of the process, like the interpreter's: it ends once. Never destroyed, because threads may outlive main().
struct Registry {
  std::mutex mutex;
  std::vector<Entry> entries;
  std::size_t purge_size = 64;              ///< Expired entries are dropped when there are this many entries.
  std::vector<std::shared_ptr<void>> kept;  ///< Objects of keep_forever().
  bool has_ended = false;
};

Registry& registry();

std::terminate_handler terminate_before = nullptr;
std::thread::id exiting_thread;
std::atomic<bool> is_exiting = false;  ///< Set after `exiting_thread`.

/// Terminate handler. A thread that CPython unwinds during exit has reached a noexcept frame: it stops, as all such
/// threads do from CPython 3.14 on.
[[noreturn]] void stop_instead_of_terminating() {
  if (is_exiting.load() && std::this_thread::get_id() != exiting_thread) {
    for (;;) pause();
  }
  terminate_before();
  std::abort();
}

Registry* make_registry() {
  // Set now, long before the exit: an exception keeps the handler that was set when it was thrown, and a daemon thread
  // may be handling an older one.
  terminate_before = std::set_terminate(stop_instead_of_terminating);
  // A child forked while another thread holds the mutex must be able to exit.
  pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); }, [] { registry().mutex.unlock(); });
  return new Registry;
}

Registry& registry() {
  static Registry* const instance = make_registry();
  return *instance;
}

/// Empties the registry for good. @returns this process's hooks that still live, in the order in which they end.
std::vector<std::shared_ptr<ExitHook>> take_own_hooks() {
  std::lock_guard const lock(registry().mutex);
  registry().has_ended = true;
  std::vector<std::shared_ptr<ExitHook>> hooks;
  for (auto const& entry : std::exchange(registry().entries, {})) {
    auto hook = entry.hook.lock();
    if (hook != nullptr && entry.owner == getpid()) hooks.push_back(std::move(hook));
  }
  std::ranges::stable_sort(hooks, {}, [](auto const& hook) { return hook->order(); });
  return hooks;
}

// Visits all hooks. An error of one hook must not keep the others from ending.
template <typename Visit>
void for_each_hook(std::vector<std::shared_ptr<ExitHook>> const& hooks, Visit visit) {
  for (auto const& hook : hooks) {
    try {
      visit(*hook);
    } catch (std::exception const& error) {
      std::fprintf(stderr, "headway: while the program ends: %s\n", error.what());
    }
  }
}

}  // namespace

void register_exit_hook(std::shared_ptr<ExitHook> const& hook) {
  std::lock_guard const lock(registry().mutex);
  comm::expects(!registry().has_ended, "the program ends: its exit handler has left all groups");
  auto& entries = registry().entries;
  if (entries.size() >= registry().purge_size) {
    std::erase_if(entries, [](Entry const& entry) { return entry.hook.expired(); });
    registry().purge_size = std::max<std::size_t>(64, 2 * entries.size());
  }
  entries.push_back({hook, getpid()});
}

void run_exit_hooks(std::chrono::milliseconds delivery_time, std::chrono::milliseconds end_time) {
  auto const hooks = take_own_hooks();
  auto const delivery_deadline = std::chrono::steady_clock::now() + delivery_time;
  exiting_thread = std::this_thread::get_id();
  is_exiting.store(true);
  for_each_hook(hooks, [&](ExitHook& hook) {
    if (auto const text = hook.deliver(delivery_deadline); !text.empty()) {
      std::fprintf(stderr, "headway: the program ends before its messages are delivered: %s\n", text.c_str());
    }
  });
  for_each_hook(hooks, [](ExitHook& hook) { hook.leave(); });
  auto const end_deadline = std::chrono::steady_clock::now() + end_time;
  for_each_hook(hooks, [&](ExitHook& hook) { static_cast<void>(hook.end(end_deadline)); });
}

void keep_forever(std::shared_ptr<void> object) {
  std::lock_guard const lock(registry().mutex);
  registry().kept.push_back(std::move(object));
}

}  // namespace headway::c10d_backend
