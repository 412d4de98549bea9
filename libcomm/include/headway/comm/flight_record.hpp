#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace headway::comm {

/// Element type of a message: any code that all ranks understand alike. Compared, never interpreted.
using DataType = std::uint16_t;

enum class FlightState {
  kQueued,     ///< Started, and not all of its messages are on their way: a bound or credit holds it back.
  kPosted,     ///< All that this rank must send is on its way.
  kCompleted,  ///< Done.
  kFailed,     ///< Pending when the group failed.
};

/// One operation of a group on this rank, as the flight recorder keeps it.
struct FlightRecord {
  using Time = std::chrono::system_clock::time_point;  ///< The epoch: it did not come to that.

  char const* verb;  ///< "all_to_all_v", "receive", ...: a literal.
  /// Counts from 0, alike on all ranks: the all-to-alls of a channel, all other collectives of the group together, the
  /// messages to `peer`, or those received from it; of host memory and of CUDA devices apart. Of a receive from any
  /// rank: such receives of this rank.
  std::uint64_t number;
  int channel;         ///< Of an all-to-all; -1 of all else. Those of device slots come after the group's own.
  int device;          ///< The CUDA device of the memory, as this process numbers it; -1: memory of the host.
  int peer;            ///< The root of a collective that has one, or the other side of a message; else -1.
  DataType data_type;  ///< 0 of a barrier.
  std::uint64_t input_bytes, output_bytes;  ///< What this rank gives and gets, the own blocks included.
  FlightState state;
  /// `started`: when it was accepted, and posted if it could be. `completed` of what failed: when the group did; of an
  /// all_to_all_v_and_wait() that was done within a microsecond or so: when it was posted; on a device: when it was
  /// seen that all had come that its streams wait for.
  Time started, posted, completed;
  /// While pending, or when the group failed: ranks whose data has not come; if there are none, ranks that have not
  /// taken what this rank sends. Of a receive from any rank: all others.
  std::vector<int> waiting_for;
};

}  // namespace headway::comm
