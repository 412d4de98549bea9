#pragma once

#include "flight_clock.hpp"
#include "headway/comm/flight_record.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace headway::comm {

/// Size of the blocks that an operation gives or gets.
template <typename Blocks>
std::uint64_t total_bytes(Blocks const& blocks) {
  std::uint64_t bytes = 0;
  for (auto const& block : blocks) bytes += block.size();
  return bytes;
}

/// What is noted of an operation while it runs.
struct FlightEntry {
  std::uint64_t input_bytes = 0, output_bytes = 0;
  std::uint64_t started = 0, posted = 0, completed = 0;  ///< Ticks of FlightClock; 0: not yet.
  DataType data_type = 0;
};

/// Which operation it is.
struct FlightTitle {
  char const* verb = "";
  std::uint64_t number = 0;
  int channel = -1;
  int peer = -1;
  int device = -1;
};

/// `entry` as users see it.
FlightRecord make_flight_record(FlightTitle const& title, FlightEntry const& entry, FlightState state,
                                FlightClock::Reading const& clock);

/// The newest entries of a sequence that is numbered from 0.
template <typename Entry>
class FlightRing {
 public:
  /// `capacity`: a power of two, or 0.
  explicit FlightRing(std::size_t capacity) : entries_(capacity), mask_(capacity - 1) {}

  [[nodiscard]] bool is_on() const { return !entries_.empty(); }
  [[nodiscard]] Entry& operator[](std::uint64_t number) { return entries_[number & mask_]; }
  [[nodiscard]] Entry const& operator[](std::uint64_t number) const { return entries_[number & mask_]; }
  /// The oldest number that is still there when `end` is the next one.
  [[nodiscard]] std::uint64_t first(std::uint64_t end) const {
    return end > entries_.size() ? end - entries_.size() : 0;
  }

 private:
  std::vector<Entry> entries_;
  std::uint64_t mask_;
};

/// An operation made of pair messages, as it carries it from its start to its end.
struct PairFlight {
  FlightTitle title;
  FlightEntry entry;
};

/// The last operations but all-to-alls that a group completed on this rank, and the clock of all. Used under the
/// group's lock. All-to-alls are in the rings of their channels.
///
/// A pending operation carries its own entry, so that no number of later ones can push it out.
class FlightRecorder {
 public:
  /// `capacity`: see FlightRing; 0: records nothing.
  FlightRecorder(std::size_t capacity, int size);

  [[nodiscard]] bool is_on() const { return completed_.is_on(); }
  /// Numbers a message to `peer`, or one received from it; -1: received from any rank.
  std::uint64_t next_send(int peer) { return num_sends_[static_cast<std::size_t>(peer)]++; }
  std::uint64_t next_receive(int peer) { return num_receives_[static_cast<std::size_t>(std::int64_t{peer} + 1)]++; }

  void complete(PairFlight const& flight) {
    auto& kept = completed_[num_completed_++];
    kept = flight;
    kept.entry.completed = FlightClock::ticks();
  }

  [[nodiscard]] FlightClock::Reading read_clock() const { return FlightClock::Reading(clock_); }
  void append_completed(FlightClock::Reading const& clock, std::vector<FlightRecord>& records) const;

 private:
  FlightClock clock_;
  FlightRing<PairFlight> completed_;
  std::uint64_t num_completed_ = 0;
  std::vector<std::uint64_t> num_sends_;     ///< (size)
  std::vector<std::uint64_t> num_receives_;  ///< (size + 1) The first are those from any rank.
};

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
