// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/flight_record.hpp"
#include "observe/flight_clock.hpp"

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

/// Sizes and times of one operation, recorded while it runs.
struct FlightEntry {
  std::uint64_t input_bytes = 0, output_bytes = 0;
  /// Ticks of FlightClock; 0: not yet. Posted: the transport accepted all messages of this rank.
  std::uint64_t started = 0, posted = 0, completed = 0;
  DataType data_type = 0;
};

/// Identity of an operation.
struct FlightTitle {
  char const* verb = "";  ///< Name of the call, with static lifetime.
  std::uint64_t seq = 0;  ///< From 0. Each channel, peer and direction counts its own; other collectives share one.
  int channel = -1;       ///< -1 unless it is an all-to-all.
  int peer = -1;          ///< Other rank of a message, or root of a collective; -1: none, or any rank.
  int device = -1;        ///< Ordinal of the CUDA device; -1: memory of the host.
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
  /// Entry `seq`; it must be one of the newest `capacity`.
  [[nodiscard]] Entry& operator[](std::uint64_t seq) { return entries_[seq & mask_]; }
  [[nodiscard]] Entry const& operator[](std::uint64_t seq) const { return entries_[seq & mask_]; }
  /// Oldest `seq` still kept if `end` is the next one to come.
  [[nodiscard]] std::uint64_t first(std::uint64_t end) const {
    return end > entries_.size() ? end - entries_.size() : 0;
  }

 private:
  std::vector<Entry> entries_;
  std::uint64_t mask_;
};

/// Flight entries of one all-to-all channel, by operation number. Used under the group's lock.
class ChannelFlights {
 public:
  /// `capacity`: as in FlightRing.
  explicit ChannelFlights(std::size_t capacity) : entries_(capacity) {}

  [[nodiscard]] bool is_on() const { return entries_.is_on(); }
  /// Entry of operation `seq`, or null if the ring no longer holds it.
  [[nodiscard]] FlightEntry const* find(std::uint64_t seq) const { return holds(seq) ? &entries_[seq] : nullptr; }
  /// Oldest number still kept.
  [[nodiscard]] std::uint64_t first() const { return entries_.first(num_started_); }

  /// Operation `seq` starts: the next one of the channel. `sizes`: an entry without times.
  void started(std::uint64_t seq, FlightEntry const& sizes) {
    entries_[seq] = sizes;
    num_started_ = seq + 1;
  }
  /// Its start returns before its messages were posted. Otherwise posted() records both times with one clock reading.
  void queued(std::uint64_t seq) { entries_[seq].started = FlightClock::ticks(); }
  void posted(std::uint64_t seq) {
    if (!holds(seq)) return;
    auto& entry = entries_[seq];
    entry.posted = FlightClock::ticks();
    if (entry.started == 0) entry.started = entry.posted;
  }
  /// A blocking operation mostly completes right after it was posted, and reading the clock would take longer than the
  /// wait. If its wait takes time, waited() corrects the entry.
  void completed(std::uint64_t seq, bool is_blocking) {
    if (!holds(seq)) return;
    auto& entry = entries_[seq];
    entry.completed = is_blocking ? entry.posted : FlightClock::ticks();
  }
  /// A wait for a blocking operation took time and ends now.
  void waited(std::uint64_t seq) {
    if (holds(seq)) entries_[seq].completed = FlightClock::ticks();
  }

 private:
  [[nodiscard]] bool holds(std::uint64_t seq) const { return seq >= first(); }

  FlightRing<FlightEntry> entries_;
  std::uint64_t num_started_ = 0;
};

/// Flight data that a point-to-point operation carries from its start to its end.
struct P2PFlight {
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
  void complete(P2PFlight const& flight) {
    auto& kept = completed_[num_completed_++];
    kept = flight;
    kept.entry.completed = FlightClock::ticks();
  }

  /// Clock reading for one set of records.
  [[nodiscard]] FlightClock::Reading read_clock() const { return FlightClock::Reading(clock_); }
  void append_completed(FlightClock::Reading const& clock, std::vector<FlightRecord>& records) const;

 private:
  FlightClock clock_;
  FlightRing<P2PFlight> completed_;
  std::uint64_t num_completed_ = 0;
  std::vector<std::uint64_t> num_sends_;  ///< (size)
  /// (size + 1) Entry 0: receives from any rank; entry 1 + r: receives from rank r.
  std::vector<std::uint64_t> num_receives_;
};

/// Ranks that a record waits for. `lacking(rank)`: data from that rank is missing. If that holds for none, the ranks
/// with `untaken(rank)`: they have not taken what this rank sends.
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
