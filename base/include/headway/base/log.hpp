// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

// Log records for the people who run a job: few, at events such as a connection or a failure, never per exchange. log()
// only queues a record. A thread of its own writes it to stderr or passes it to the program's callback, so a record may
// be logged under any lock. log.cpp explains the delivery.
//
// C++ programs set the least level with HEADWAY_LOG=warning (default), info or debug. In Python, headway passes all
// records to the loggers "headway.<subsystem>", whose levels decide.

namespace headway::base {

/// Importance of a record. The numbers are those of Python's logging.
enum class LogLevel : int { kDebug = 10, kInfo = 20, kWarning = 30 };

/// One event, as a callback receives it.
struct LogRecord {
  LogLevel level = LogLevel::kInfo;
  std::string subsystem;  ///< "bootstrap", "device", "group", "progress" or "log".
  int rank = -1;          ///< Rank in its group; -1 if the event belongs to no group.
  std::string message;
  std::chrono::system_clock::time_point time{};
};

/// Receives records, one at a time and in order, on the log's thread. It may block and log; the library holds no lock
/// meanwhile. If it throws, the record goes to stderr with the error.
using LogCallback = std::function<void(LogRecord const&)>;

/// Queues a record; does not block. At most 4096 records wait: later ones are dropped, and their number is logged.
/// Without a thread (the system has none left), the record is written to stderr at once. Thread-safe; works in forked
/// children.
void log(LogLevel level, std::string_view subsystem, int rank, std::string_view message) noexcept;

/// Is a record of this level delivered? One atomic load: ask before composing a costly message.
[[nodiscard]] bool is_logged(LogLevel level) noexcept;

/// Delivers records of at least `least` to `callback`, instead of to stderr. Empty: to stderr again, from the level of
/// HEADWAY_LOG on. Records that are already queued are delivered in the new way. A call of the old callback may still
/// run; flush_log() waits for it.
void set_log_callback(LogCallback callback, LogLevel least = LogLevel::kDebug);

/// Waits until all records so far are delivered, at most `timeout`. @returns whether they are. In a callback it returns
/// false at once.
bool flush_log(std::chrono::milliseconds timeout);

/// Level of a name: "debug", "info" or "warning". @throws UsageError for any other name.
[[nodiscard]] LogLevel log_level_named(std::string_view name);

/// Checks HEADWAY_LOG. @throws UsageError if it is set and names no level.
void check_log_variable();

}  // namespace headway::base
