#pragma once

#include "flight_clock.hpp"
#include "headway/comm/endpoint.hpp"
#include "headway/comm/flight_record.hpp"
#include "headway/comm/status.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace headway::comm {

/// Operations of a group that do not go over its endpoint, as those on streams of a device: they share its time limits
/// and its end. All is called under the group's lock, by any thread; none may call the group.
class GroupCompanion {
 public:
  virtual ~GroupCompanion() = default;
  /// Whether an operation is past its time.
  [[nodiscard]] virtual bool is_late(Clock::time_point now) = 0;
  /// Whether an operation waits for something of `peer`.
  [[nodiscard]] virtual bool needs(int peer) = 0;
  /// The oldest operation, and what it waits for; empty: none is pending.
  [[nodiscard]] virtual std::string describe_missing() = 0;
  /// Adds the records of its last operations that are done, and of those that are pending, or were when the group
  /// failed; where the group keeps records.
  virtual void append_flights(FlightClock::Reading const& clock, std::vector<FlightRecord>& records) = 0;
  /// The companion of `peer` said `text` by Group::tell(), perhaps before this one was there. @throws std::exception:
  /// the group fails.
  virtual void heard(int peer, std::string_view text) = 0;
  /// The group has failed: called at once, and about once a second from then on.
  virtual void group_failed(Status const& failure) noexcept = 0;
};

}  // namespace headway::comm
