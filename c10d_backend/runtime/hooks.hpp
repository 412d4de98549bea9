// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

namespace headway::c10d_backend {

/// Returns a new key for an operation. Keys of a process are unique and ascend.
[[nodiscard]] std::uint64_t new_completion_key() noexcept;

/// Functions that users and PyTorch's flight recorder register with a group, abort hooks and completion hooks, and the
/// group's timeout extensions. Thread-safe. hooks.cpp explains when each is called.
class Hooks {
 public:
  using AbortHook = std::function<void()>;
  /// Gets the operation's key, and its duration in ms if it is known.
  using CompletionHook = std::function<void(std::uint64_t key, std::optional<float> duration_ms)>;
  /// Outcome of an operation: none while it is pending, else whether it succeeded.
  using Poll = std::function<std::optional<bool>()>;

  /// Replaces the hook that has the same id.
  void add_abort_hook(std::int64_t id, AbortHook hook);
  void remove_abort_hook(std::int64_t id);
  /// @returns true for the first caller if there are abort hooks: it must see to it that run_abort_hooks() or
  /// end_abort() is called.
  [[nodiscard]] bool begin_abort();
  /// Calls all abort hooks, in the order of their ids. Call it without locks and without the interpreter lock: a hook
  /// may take its time. A hook that throws is reported and does not keep the others from running.
  void run_abort_hooks();
  /// Ends the waits for abort hooks. To be called if run_abort_hooks() cannot be.
  void end_abort();
  /// Waits until the abort hooks have run, if they are about to, but not beyond `limit` after begin_abort(). Call it
  /// without the interpreter lock.
  void wait_for_abort_hooks(std::chrono::milliseconds limit);

  /// The hook runs under a lock: it must not call this object.
  void add_completion_hook(std::int64_t id, CompletionHook hook);
  /// Removes the hook, which is not running any more when this returns. Call it without the interpreter lock.
  void remove_completion_hook(std::int64_t id);

  /// Removes all hooks, once no completion hook runs. Timeout extensions and pending operations stay.
  void clear();

  /// Lengthens the timeout of operations that start from now on, until the one that started first completes.
  void extend_timeout(std::chrono::milliseconds extension);
  /// Sum of the extensions that have not ended.
  [[nodiscard]] std::chrono::milliseconds timeout_extension();

  /// Notes the start of operation `key`. `poll` is called while nobody else reports its completion.
  void started(std::uint64_t key, Poll poll);
  /// Reports the end of operation `key`. Only the first call for a key counts.
  void completed(std::uint64_t key, bool is_success, std::optional<float> duration_ms);
  /// Reports the end of an operation that started() was not told of.
  void fire_completion(std::uint64_t key, std::optional<float> duration_ms);
  /// Whether anybody wants to know of completions. If not, callers need not make a Poll.
  [[nodiscard]] bool wants_completions() const noexcept { return wants_completions_.load(std::memory_order_relaxed); }

 private:
  /// A timeout extension. It ends when the first operation that started after it completes.
  struct Extension {
    std::chrono::milliseconds length;
    std::optional<std::uint64_t> first_key;  ///< Key of that operation, once it has started.
  };

  /// Polls the oldest `limit` pending operations. The caller holds `mutex_`.
  void poll_pending(std::size_t limit);
  /// Body of completed(). The caller holds `mutex_`.
  void complete_locked(std::uint64_t key, bool is_success, std::optional<float> duration_ms);
  /// Recomputes wants_completions_. The caller holds `mutex_`.
  void update_wants_completions();

  std::mutex abort_mutex_;  ///< Guards the next members. Not held while a hook runs.
  std::condition_variable abort_ended_;
  std::map<std::int64_t, AbortHook> abort_hooks_;
  std::optional<std::chrono::steady_clock::time_point> abort_began_at_;
  bool has_abort_ended_ = false;

  std::mutex mutex_;  ///< Guards the members below, also while completion hooks run.
  std::map<std::int64_t, CompletionHook> completion_hooks_;
  std::map<std::uint64_t, Poll> pending_;  ///< Operations whose end is not reported yet, by key.
  std::vector<Extension> extensions_;
  std::atomic<bool> wants_completions_ = false;
};

}  // namespace headway::c10d_backend
