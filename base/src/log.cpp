// SPDX-License-Identifier: Apache-2.0

// Delivery of log records by a thread of its own.
//
// Problem: the library logs under its locks, for example when a group fails. Python's logging takes the interpreter
// lock and locks of its handlers, and a thread that holds those may wait for the library. A direct call could deadlock.
//
// Idea: log() appends the record to a queue. The log's thread, started by the first record, takes records one at a time
// and delivers each with no lock held. It ends after some idle time, so a quiet program has no thread more.
//
// Example: a group fails while thread A waits in Python with the interpreter lock. The progress thread queues "group
// failed" under the group's lock and goes on. A sees the failure and releases the interpreter lock; the log's thread
// takes it and calls Python's logger.
//
// Invariants:
// - `mutex` is never held during a call of the callback or a write to stderr.
// - num_delivered <= num_queued. flush_log() waits until num_delivered has reached the num_queued that it saw.
// - A full queue drops new records until it is half empty. One entry at their place counts them, so records stay in
//   order, and all that were queued before a call of flush_log() are delivered when it returns true.
// - After fork() the child has no log thread, and a copy of the queue that belongs to its parent. It starts with a new
//   state, which keeps the callback and the level. The mutex is held during fork(), so the copy is consistent.
// - The state is never destroyed: threads may log while the process exits.
// Complexity: one allocation and one short critical section for each record.

#include "headway/base/log.hpp"

#include "headway/base/status.hpp"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace headway::base {

namespace {

using std::chrono::milliseconds;

constexpr std::size_t kMaxWaiting = 4096;  ///< Records in the queue; later ones are dropped.
constexpr std::size_t kResumeAt = kMaxWaiting / 2;
/// Time without a record after which the log's thread ends. The next record starts another one.
constexpr milliseconds kIdleTime{2000};
constexpr char const* kVariable = "HEADWAY_LOG";
/// Longest time that the end of the program waits for records that are not delivered yet.
constexpr milliseconds kExitTime{1000};

char const* name_of(LogLevel level) {
  if (level >= LogLevel::kWarning) return "warning";
  return level >= LogLevel::kInfo ? "info" : "debug";
}

/// Writes a record as one line. `note` follows the message.
void write_to_stderr(LogRecord const& record, std::string const& note = {}) noexcept {
  std::time_t const seconds = std::chrono::system_clock::to_time_t(record.time);
  std::tm parts{};
  char clock[16] = "";
  if (::localtime_r(&seconds, &parts) != nullptr) std::strftime(clock, sizeof clock, "%H:%M:%S", &parts);
  std::string const rank = record.rank < 0 ? "" : " rank " + std::to_string(record.rank) + ":";
  std::fprintf(stderr, "%s headway.%s %s:%s %s%s\n", clock, record.subsystem.c_str(), name_of(record.level),
               rank.c_str(), record.message.c_str(), note.c_str());
}

/// The level that HEADWAY_LOG names. A wrong name counts as unset; check_log_variable() reports it.
LogLevel level_of_variable() noexcept {
  try {
    char const* const name = std::getenv(kVariable);
    return name == nullptr ? LogLevel::kWarning : log_level_named(name);
  } catch (std::exception const&) {
    return LogLevel::kWarning;
  }
}

/// A record in the queue, or the place of records that were dropped.
struct Entry {
  LogRecord record{};
  std::uint64_t num_dropped = 0;  ///< If it is not 0, `record` is empty.
};

/// The queue and what the log's thread needs.
struct State {
  std::mutex mutex;  ///< Guards all fields but `level`.
  std::condition_variable queued, delivered;
  std::deque<Entry> waiting;
  std::uint64_t num_queued = 0, num_delivered = 0;
  bool is_dropping = false;
  std::shared_ptr<LogCallback const> callback;  ///< Null: records go to stderr.
  bool has_thread = false;
  std::thread::id thread;
  std::atomic<LogLevel> level = level_of_variable();
};

State* make_state();

/// State of this process. A log is one for each process, like stderr.
std::atomic<State*>& current() {
  static std::atomic<State*> state = make_state();
  return state;
}

State& state() { return *current().load(std::memory_order_acquire); }

/// A forked child goes on with a new state. It runs while the forking thread holds the old one's mutex.
void renew_in_child() {
  State& old = state();
  auto* const fresh = new State;
  fresh->callback = old.callback;
  fresh->level = old.level.load();
  current().store(fresh, std::memory_order_release);
}

State* make_state() {
  ::pthread_atfork([] { state().mutex.lock(); }, [] { state().mutex.unlock(); }, renew_in_child);
  std::atexit([] { flush_log(kExitTime); });
  return new State;
}

/// Delivers one record. An error of the callback loses nothing.
void deliver(LogRecord const& record, LogCallback const* callback) noexcept {
  if (callback == nullptr) return write_to_stderr(record);
  try {
    (*callback)(record);
  } catch (std::exception const& error) {
    write_to_stderr(record, " (the log callback failed: " + std::string(error.what()) + ")");
  } catch (...) {
    write_to_stderr(record, " (the log callback failed)");
  }
}

/// Appends a record, or counts it as dropped.
void append(State& log, LogRecord record) {
  log.is_dropping = log.waiting.size() > (log.is_dropping ? kResumeAt : kMaxWaiting - 1);
  if (log.is_dropping && log.waiting.back().num_dropped > 0) {
    ++log.waiting.back().num_dropped;
    return;
  }
  log.waiting.push_back(log.is_dropping ? Entry{.num_dropped = 1} : Entry{.record = std::move(record)});
  ++log.num_queued;
}

/// Takes the next record, or the report of those that were dropped at its place.
LogRecord take_next(State& log) {
  Entry entry = std::move(log.waiting.front());
  log.waiting.pop_front();
  if (entry.num_dropped == 0) return std::move(entry.record);
  return {
      .level = LogLevel::kWarning,
      .subsystem = "log",
      .message = std::to_string(entry.num_dropped) + " records were dropped: they come faster than they are delivered",
      .time = std::chrono::system_clock::now()};
}

/// Loop of the log's thread.
void run(State& log) noexcept {
  ::pthread_setname_np(::pthread_self(), "headway_log");
  std::unique_lock lock(log.mutex);
  log.thread = std::this_thread::get_id();
  for (;;) {
    if (!log.queued.wait_for(lock, kIdleTime, [&] { return !log.waiting.empty(); })) break;
    LogRecord const record = take_next(log);
    auto callback = log.callback;
    lock.unlock();
    deliver(record, callback.get());
    callback.reset();              // Its destructor is the program's code.
    if (&state() != &log) return;  // The callback forked, and this is the child: the parent has the mutex of `log`.
    lock.lock();
    ++log.num_delivered;
    log.delivered.notify_all();
  }
  log.thread = {};
  log.has_thread = false;
}

/// Starts the log's thread unless it runs. All signals are blocked in it: they go to the program's own threads.
/// @returns whether it runs.
bool ensure_thread(State& log) {
  if (log.has_thread) return true;
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread([&log] { run(log); }).detach();
    log.has_thread = true;
  } catch (std::exception const&) {  // The next record tries again.
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return log.has_thread;
}

}  // namespace

void log(LogLevel level, std::string_view subsystem, int rank, std::string_view message) noexcept {
  if (!is_logged(level)) return;
  try {
    LogRecord record{.level = level,
                     .subsystem = std::string(subsystem),
                     .rank = rank,
                     .message = std::string(message),
                     .time = std::chrono::system_clock::now()};
    State& log = state();
    {
      std::lock_guard const lock(log.mutex);
      if (ensure_thread(log)) {
        append(log, std::move(record));
        log.queued.notify_one();
        return;
      }
    }
    write_to_stderr(record);
  } catch (std::exception const&) {
    std::fprintf(stderr, "headway: out of memory for a log record\n");
  }
}

bool is_logged(LogLevel level) noexcept { return level >= state().level.load(std::memory_order_relaxed); }

void set_log_callback(LogCallback callback, LogLevel least) {
  auto next = callback ? std::make_shared<LogCallback const>(std::move(callback)) : nullptr;
  State& log = state();
  log.level = next ? least : level_of_variable();
  std::lock_guard const lock(log.mutex);
  std::swap(log.callback, next);
}

bool flush_log(milliseconds timeout) {
  State& log = state();
  std::unique_lock lock(log.mutex);
  if (log.thread == std::this_thread::get_id()) return false;
  auto const goal = log.num_queued;
  return log.delivered.wait_for(lock, timeout, [&] { return log.num_delivered >= goal; });
}

LogLevel log_level_named(std::string_view name) {
  for (auto const level : {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning}) {
    if (name == name_of(level)) return level;
  }
  throw UsageError("'" + std::string(name) + "' is no level of the log: it must be debug, info or warning");
}

void check_log_variable() {
  char const* const name = std::getenv(kVariable);
  if (name == nullptr) return;
  try {
    static_cast<void>(log_level_named(name));
  } catch (UsageError const& error) {
    throw UsageError(std::string(kVariable) + ": " + error.what());
  }
}

}  // namespace headway::base
