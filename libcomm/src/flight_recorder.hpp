#pragma once

#include "flight_clock.hpp"
#include "headway/comm/flight_record.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace headway::comm {

/// Total size in bytes of the blocks of an operation.
template <typename Blocks>
std::uint64_t total_bytes(Blocks const& blocks) {
  std::uint64_t bytes = 0;
  for (auto const& block : blocks) bytes += block.size();
  return bytes;
}

/// Data noted while an operation runs.
struct FlightEntry {
  std::uint64_t input_bytes = 0, output_bytes = 0;
  std::uint64_t started = 0, posted = 0, completed = 0;  ///< Ticks of FlightClock; 0: not yet.
  DataType data_type = 0;
};

/// Identity of an operation.
struct FlightTitle {
  char const* verb = "";
  std::uint64_t number = 0;
  int channel = -1;
  int peer = -1;
  int device = -1;
};

/// Joins title and entry into the public record.
FlightRecord make_flight_record(FlightTitle const& title, FlightEntry const& entry, FlightState state,
                                FlightClock::Reading const& clock);

/// The newest entries of a sequence numbered from 0.
template <typename Entry>
class FlightRing {
 public:
  /// `capacity` is a power of two, or 0: off.
  explicit FlightRing(std::size_t capacity) : entries_(capacity), mask_(capacity - 1) {}

  [[nodiscard]] bool is_on() const { return !entries_.empty(); }
  /// Entry `number`; it must be one of the newest `capacity`.
  [[nodiscard]] Entry& operator[](std::uint64_t number) { return entries_[number & mask_]; }
  [[nodiscard]] Entry const& operator[](std::uint64_t number) const { return entries_[number & mask_]; }
  /// Oldest number still kept if `end` is the next one to come.
  [[nodiscard]] std::uint64_t first(std::uint64_t end) const {
    return end > entries_.size() ? end - entries_.size() : 0;
  }

 private:
  std::vector<Entry> entries_;
  std::uint64_t mask_;
};

/// Flight data that a pair operation carries from its start to its end.
struct PairFlight {
  FlightTitle title;
  FlightEntry entry;
};

/// Flight recorder of a group: its last completed operations except all-to-alls, which their channels record, and the
/// clock of all records. flight_recorder.cpp explains the design. Used under the group's lock.
class FlightRecorder {
 public:
  /// `capacity`: as in FlightRing.
  FlightRecorder(std::size_t capacity, int size);

  [[nodiscard]] bool is_on() const { return completed_.is_on(); }
  /// Sequence number of the next send to `peer`, or of the next receive from it. -1: from any rank.
  std::uint64_t next_send(int peer) { return num_sends_[static_cast<std::size_t>(peer)]++; }
  std::uint64_t next_receive(int peer) { return num_receives_[static_cast<std::size_t>(std::int64_t{peer} + 1)]++; }

  /// Keeps an operation that completes now.
  void complete(PairFlight const& flight) {
    auto& kept = completed_[num_completed_++];
    kept = flight;
    kept.entry.completed = FlightClock::ticks();
  }

  /// Clock reading for one set of records.
  [[nodiscard]] FlightClock::Reading read_clock() const { return FlightClock::Reading(clock_); }
  void append_completed(FlightClock::Reading const& clock, std::vector<FlightRecord>& records) const;

 private:
  FlightClock clock_;
  FlightRing<PairFlight> completed_;
  std::uint64_t num_completed_ = 0;
  std::vector<std::uint64_t> num_sends_;  ///< (size)
  /// (size + 1) Entry 0: receives from any rank; entry 1 + r: receives from rank r.
  std::vector<std::uint64_t> num_receives_;
};

/// Ranks that a record waits for: those whose data is `lacking`; if there are none, those with data `untaken`.
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
