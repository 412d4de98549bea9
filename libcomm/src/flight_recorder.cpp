#include "flight_recorder.hpp"

namespace headway::comm {

FlightRecord make_flight_record(FlightTitle const& title, FlightEntry const& entry, FlightState state,
                                FlightClock::Reading const& clock) {
  return {.verb = title.verb,
          .number = title.number,
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
