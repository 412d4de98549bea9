#pragma once

#include "flight_clock.hpp"
#include "headway/comm/flight_record.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace headway::comm {

/// What an operation carries for the flight recorder from its start to its end.
struct FlightEntry {
  char const* verb = "";
  std::uint64_t id = 0, number = 0;
  std::uint64_t input_bytes = 0, output_bytes = 0;
  std::uint64_t started = 0, posted = 0, completed = 0;  ///< Ticks of FlightClock; 0: not yet.
  int peer = -1;
  std::int16_t channel = -1;
  DataType data_type = 0;
};

/// The last operations that a group completed on this rank, in a ring of fixed size. Used under the group's lock.
///
/// A pending operation carries its own entry, so that no number of later ones can push it out.
class FlightRecorder {
 public:
  /// `capacity`: entries kept; 0: records nothing.
  FlightRecorder(std::size_t capacity, int size);

  [[nodiscard]] bool is_on() const { return !ring_.empty(); }

  /// Gives the entry of an operation that starts now its place in the order of starts.
  void number(FlightEntry& entry) { entry.id = num_started_++; }
  /// Numbers a message to `peer`, or one received from it; -1: received from any rank.
  std::uint64_t next_send(int peer) { return num_sends_[static_cast<std::size_t>(peer)]++; }
  std::uint64_t next_receive(int peer) { return num_receives_[static_cast<std::size_t>(peer + 1)]++; }

  void complete(FlightEntry const& entry) {
    auto& kept = ring_[next_];
    kept = entry;
    kept.completed = FlightClock::ticks();
    next_ = next_ + 1 < ring_.size() ? next_ + 1 : 0;
    ++num_completed_;
  }

  [[nodiscard]] FlightClock::Reading read_clock() const { return FlightClock::Reading(clock_); }
  /// The operations that are kept, in the order in which they completed.
  [[nodiscard]] std::vector<FlightRecord> completed_records(FlightClock::Reading const& clock) const;
  /// `entry` as users see it.
  static FlightRecord record_of(FlightEntry const& entry, FlightState state, FlightClock::Reading const& clock);

 private:
  FlightClock clock_;
  std::vector<FlightEntry> ring_;
  std::size_t next_ = 0;  ///< Place of the next one to complete.
  std::uint64_t num_completed_ = 0;
  std::uint64_t num_started_ = 0;
  std::vector<std::uint64_t> num_sends_;     ///< (size)
  std::vector<std::uint64_t> num_receives_;  ///< (size + 1) The first are those from any rank.
};

/// Size of the blocks that an operation gives or gets.
template <typename Blocks>
std::uint64_t total_bytes(Blocks const& blocks) {
  std::uint64_t bytes = 0;
  for (auto const& block : blocks) bytes += block.size();
  return bytes;
}

/// The ranks of which data is `lacking`; if there are none, those that have something `untaken`.
template <typename Lacking, typename Untaken>
std::vector<int> select_ranks(int size, Lacking&& lacking, Untaken&& untaken) {
  std::vector<int> lacked, slow;
  for (int rank = 0; rank < size; ++rank) {
    if (lacking(rank)) lacked.push_back(rank);
    if (untaken(rank)) slow.push_back(rank);
  }
  return lacked.empty() ? slow : lacked;
}

}  // namespace headway::comm
