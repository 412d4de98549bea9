// SPDX-License-Identifier: Apache-2.0

// Flight recorder: the last operations of a group, cheap enough to be always on.
//
// Idea: a state change stores a tick count of the processor (FlightClock). Entries are kept in rings of fixed size: one
// per all-to-all channel, indexed by operation number, and one for all other completed operations of the group. Ticks
// become wall-clock times, and numbers become names, only when somebody reads the records.
//
// Example: with 256 entries and 300 operations started, first(300) = 44: operations 44 to 299 are kept, each at number
// & 255.
//
// Invariants: a pending point-to-point operation carries its own entry, so later operations cannot push it out.
//   A pending all-to-all that its ring no longer holds is reported with its sizes but without times.
//   A failed group keeps the records of its pending operations as they were when it failed.
// Complexity: one counter reading per recorded state change; memory is fixed when the group is made.
// Source: PyTorch's NCCL flight recorder has the same purpose.

#include "observe/flight_recorder.hpp"

namespace headway::comm {

FlightRecord make_flight_record(FlightTitle const& title, FlightEntry const& entry, FlightState state,
                                FlightClock::Reading const& clock) {
  return {.verb = title.verb,
          .seq = title.seq,
          .channel = title.channel,
          .device = title.device,
          .peer = title.peer,
          .data_type = entry.data_type,
          .input_bytes = entry.input_bytes,
          .output_bytes = entry.output_bytes,
          .state = state,
          .started = clock.time_of(entry.started),
          .posted = clock.time_of(entry.posted),
          .completed = clock.time_of(entry.completed),
          .waiting_for = {}};
}

FlightRecorder::FlightRecorder(std::size_t capacity, int size)
    : completed_(capacity),
      num_sends_(static_cast<std::size_t>(size)),
      num_receives_(static_cast<std::size_t>(size) + 1) {}

void FlightRecorder::append_completed(FlightClock::Reading const& clock, std::vector<FlightRecord>& records) const {
  for (std::uint64_t i = completed_.first(num_completed_); i < num_completed_; ++i) {
    records.push_back(make_flight_record(completed_[i].title, completed_[i].entry, FlightState::kCompleted, clock));
  }
}

}  // namespace headway::comm
