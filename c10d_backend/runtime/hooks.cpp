// SPDX-License-Identifier: Apache-2.0

// Hooks of a group, and who calls them.
//
// Abort hooks run once, before the group is aborted: in abort(), when an operation runs out of time, and when a peer
// is lost. In the last case the group has failed already. They run on the completion thread. The thread that sees the
// failure waits for them, since its program may end at the exception, but not for long: a dead peer must be named in
// time, and a recorder may need seconds for its file. The exit of the program waits longer.
//
// Completion hooks run once for each operation that succeeded. A caller that waits reports the completion at once.
// Nobody follows an operation that nobody waits for, so such operations are polled: when others start, and before
// abort hooks run, which is where a flight recorder writes its file.
//   Example: operations 1 and 2 start, and only 2 is waited for. wait() reports 2. The start of operation 3 polls 1,
//   finds it done, and reports it. A failure that comes before operation 3 polls it too.
//
// Invariants: an operation is reported at most once. Failed operations are never reported, because for a recorder a
//   collective that never finished must not look like one that did.
// Complexity: a started operation polls at most kPollsPerStart others.

#include "runtime/hooks.hpp"

#include <headway/base/log.hpp>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

namespace headway::c10d_backend {

namespace {

/// Operations that are polled at the start of another one. More than one, so that the backlog shrinks.
constexpr std::size_t kPollsPerStart = 4;

/// True while this thread runs abort hooks: a hook that uses the failed group must not wait for itself.
thread_local bool t_runs_abort_hooks = false;

}  // namespace

std::uint64_t new_completion_key() noexcept {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

void Hooks::add_abort_hook(std::int64_t id, AbortHook hook) {
  std::lock_guard const lock(abort_mutex_);
  abort_hooks_[id] = std::move(hook);
}

void Hooks::remove_abort_hook(std::int64_t id) {
  AbortHook removed;  // Freed after the lock, because Python may own it.
  std::lock_guard const lock(abort_mutex_);
  if (auto const found = abort_hooks_.find(id); found != abort_hooks_.end()) {
    removed = std::move(found->second);
    abort_hooks_.erase(found);
  }
}

bool Hooks::begin_abort() {
  std::lock_guard const lock(abort_mutex_);
  if (abort_hooks_.empty() || abort_began_at_) return false;
  abort_began_at_ = std::chrono::steady_clock::now();
  return true;
}

void Hooks::end_abort() {
  {
    std::lock_guard const lock(abort_mutex_);
    has_abort_ended_ = true;
  }
  abort_ended_.notify_all();
}

void Hooks::wait_for_abort_hooks(std::chrono::milliseconds limit) {
  if (t_runs_abort_hooks) return;
  std::unique_lock lock(abort_mutex_);
  if (abort_began_at_) abort_ended_.wait_until(lock, *abort_began_at_ + limit, [this] { return has_abort_ended_; });
}

void Hooks::clear() {
  std::map<std::int64_t, AbortHook> abort_hooks;  // Freed after the locks, because Python may own hooks.
  std::map<std::int64_t, CompletionHook> completion_hooks;
  {
    std::lock_guard const lock(abort_mutex_);
    abort_hooks.swap(abort_hooks_);
  }
  std::lock_guard const lock(mutex_);
  completion_hooks.swap(completion_hooks_);
  update_wants_completions();
}

void Hooks::run_abort_hooks() {
  {
    std::lock_guard const lock(mutex_);
    poll_pending(pending_.size());
  }
  std::map<std::int64_t, AbortHook> hooks;
  {
    std::lock_guard const lock(abort_mutex_);
    hooks = abort_hooks_;
  }
  t_runs_abort_hooks = true;
  for (auto const& [id, hook] : hooks) {
    try {
      hook();
    } catch (std::exception const& error) {
      base::log(base::LogLevel::kWarning, "group", /*rank=*/-1,
                "abort hook " + std::to_string(id) + " failed: " + error.what());
    }
  }
  t_runs_abort_hooks = false;
  end_abort();
}

void Hooks::add_completion_hook(std::int64_t id, CompletionHook hook) {
  std::lock_guard const lock(mutex_);
  completion_hooks_[id] = std::move(hook);
  update_wants_completions();
}

void Hooks::remove_completion_hook(std::int64_t id) {
  std::lock_guard const lock(mutex_);
  completion_hooks_.erase(id);
  update_wants_completions();
}

void Hooks::extend_timeout(std::chrono::milliseconds extension) {
  std::lock_guard const lock(mutex_);
  extensions_.push_back({extension, std::nullopt});
  update_wants_completions();
}

std::chrono::milliseconds Hooks::timeout_extension() {
  std::lock_guard const lock(mutex_);
  poll_pending(pending_.size());
  std::chrono::milliseconds sum{0};
  for (auto const& extension : extensions_) sum += extension.length;
  return sum;
}

void Hooks::update_wants_completions() { wants_completions_ = !completion_hooks_.empty() || !extensions_.empty(); }

void Hooks::started(std::uint64_t key, Poll poll) {
  std::lock_guard const lock(mutex_);
  poll_pending(kPollsPerStart);
  for (auto& extension : extensions_) {
    if (!extension.first_key) extension.first_key = key;
  }
  pending_.emplace(key, std::move(poll));
}

void Hooks::completed(std::uint64_t key, bool is_success, std::optional<float> duration_ms) {
  std::lock_guard const lock(mutex_);
  if (pending_.erase(key) != 0) complete_locked(key, is_success, duration_ms);
}

/// For operations that are not pending here: their work calls it once, when it has completed.
void Hooks::fire_completion(std::uint64_t key, std::optional<float> duration_ms) {
  std::lock_guard const lock(mutex_);
  complete_locked(key, true, duration_ms);
}

void Hooks::poll_pending(std::size_t limit) {
  for (auto entry = pending_.begin(); entry != pending_.end() && limit > 0; --limit) {
    auto const outcome = entry->second();
    if (!outcome) {
      ++entry;
      continue;
    }
    auto const key = entry->first;
    entry = pending_.erase(entry);
    complete_locked(key, *outcome, std::nullopt);
  }
}

void Hooks::complete_locked(std::uint64_t key, bool is_success, std::optional<float> duration_ms) {
  if (is_success) {
    for (auto const& [id, hook] : completion_hooks_) hook(key, duration_ms);
  }
  if (std::erase_if(extensions_, [key](auto const& extension) { return extension.first_key == key; }) != 0) {
    update_wants_completions();
  }
}

}  // namespace headway::c10d_backend
