#include "flight_recorder.hpp"

namespace headway::comm {

FlightRecorder::FlightRecorder(std::size_t capacity, int size)
    : ring_(capacity), num_sends_(static_cast<std::size_t>(size)), num_receives_(static_cast<std::size_t>(size) + 1) {}

std::vector<FlightRecord> FlightRecorder::completed_records(FlightClock::Reading const& clock) const {
  std::vector<FlightRecord> records;
  bool const is_full = num_completed_ >= ring_.size();
  std::size_t const count = is_full ? ring_.size() : next_;
  records.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    auto const& entry = ring_[is_full ? (next_ + i) % ring_.size() : i];
    records.push_back(record_of(entry, FlightState::kCompleted, clock));
  }
  return records;
}

FlightRecord FlightRecorder::record_of(FlightEntry const& entry, FlightState state, FlightClock::Reading const& clock) {
  return {.id = entry.id,
          .verb = entry.verb,
          .number = entry.number,
          .channel = entry.channel,
          .peer = entry.peer,
          .data_type = entry.data_type,
          .input_bytes = entry.input_bytes,
          .output_bytes = entry.output_bytes,
          .state = state,
          .started = clock.time_of(entry.started),
          .posted = clock.time_of(entry.posted),
          .completed = clock.time_of(entry.completed),
          .waiting_for = {}};
}

}  // namespace headway::comm
