// SPDX-License-Identifier: Apache-2.0

// Observers of a group: parts that have operations of their own, such as exchanges of GPU memory, but live and die
// with the group.

#pragma once

#include "headway/comm/endpoint.hpp"
#include "headway/comm/flight_record.hpp"
#include "headway/comm/status.hpp"
#include "observe/flight_clock.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace headway::comm {

/// Interface of operations that belong to a group but do not use its endpoint, such as those on CUDA streams. They
/// share the group's time limits and failures. Any thread may call these functions, under the group's lock. They must
/// not call the group.
class GroupObserver {
 public:
  virtual ~GroupObserver() = default;
  /// Has an operation passed its deadline?
  [[nodiscard]] virtual bool is_late(Clock::time_point now) = 0;
  /// Does an operation wait for `peer`?
  [[nodiscard]] virtual bool needs(int peer) = 0;
  /// Describes the oldest incomplete operation and what it waits for. Empty: none is pending.
  [[nodiscard]] virtual std::string describe_missing() = 0;
  /// Appends the flight records of its last completed operations, and of the pending ones or those pending when the
  /// group failed. Called only if the group keeps records.
  virtual void append_flights(FlightClock::Reading const& clock, std::vector<FlightRecord>& records) = 0;
  /// The observer of `peer` sent `text` with GroupAdmin::send_oob(), perhaps before this observer was attached. If it
  /// throws a std::exception, the group fails.
  virtual void on_oob(int peer, std::string_view text) = 0;
  /// The group has failed. Called at once, and then about once a second.
  virtual void group_failed(Status const& failure) noexcept = 0;
};

}  // namespace headway::comm
