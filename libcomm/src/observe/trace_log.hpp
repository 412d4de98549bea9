// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/endpoint.hpp"
#include "headway/comm/group_monitor.hpp"

#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

namespace headway::comm {

/// Times of one all-to-all while its channel is traced, in seconds of Clock since its epoch. 0: not traced.
struct TraceTimes {
  double started_s = 0, posted_s = 0;
};

/// Trace of one all-to-all channel: its first completed operations since tracing began or was drained. Used under the
/// group's lock.
class TraceLog {
 public:
  static double now_s() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

  [[nodiscard]] bool is_on() const { return capacity_ != 0; }
  /// Keeps up to `capacity` events from now on; 0: stops. Drops the events kept so far.
  void set_capacity(std::size_t capacity) {
    capacity_ = capacity;
    events_.clear();
    events_.reserve(capacity);
  }
  /// Returns the events and forgets them.
  [[nodiscard]] std::vector<TraceEvent> drain() { return std::exchange(events_, {}); }

  /// Is there room for an operation with these times? One that started before tracing is not kept.
  [[nodiscard]] bool keeps(TraceTimes const& times) const { return events_.size() < capacity_ && times.started_s != 0; }
  void add(TraceEvent const& event) { events_.push_back(event); }

 private:
  std::vector<TraceEvent> events_;
  std::size_t capacity_ = 0;
};

}  // namespace headway::comm
