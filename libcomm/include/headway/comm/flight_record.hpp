// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace headway::comm {

/// Element type of a message: an arbitrary code that means the same on all ranks. The library compares it and never
/// interprets it.
using DataType = std::uint16_t;

/// Progress of an operation on this rank.
enum class FlightState {
  /// Started, but some of its messages were not posted yet. The bound max_lag, on how far ranks run ahead, holds them
  /// back, or the transport accepts no more messages to a peer now.
  kQueued,
  kPosted,     ///< All messages of this rank are posted.
  kCompleted,  ///< Completed without an error.
  kFailed,     ///< Still pending when the group failed.
};

/// One operation of a group on this rank, as the flight recorder reports it.
struct FlightRecord {
  using Time = std::chrono::system_clock::time_point;  ///< The epoch means: did not happen.

  char const* verb;  ///< "all_to_all_v", "receive", ...: a string literal.
  /// Sequence number from 0, the same on all ranks. Separate sequences number the all-to-alls of each channel, all
  /// other collectives together, the sends to each peer, and the receives from each peer. Operations on host memory and
  /// on CUDA devices are numbered separately. Receives from any rank are numbered on this rank only.
  std::uint64_t seq;
  /// Channel of an all-to-all; -1 for other operations. All-to-alls of DeviceSlots have numbers above those of the
  /// group's channels.
  int channel;
  int device;                               ///< CUDA device ordinal in this process; -1: host memory.
  int peer;                                 ///< Root of a rooted collective, or the other rank of a message; else -1.
  DataType data_type;                       ///< 0 for a barrier.
  std::uint64_t input_bytes, output_bytes;  ///< Bytes that this rank sends and receives, blocks to itself included.
  FlightState state;
  /// `started`: when the operation was accepted; if it could be posted at once, about when it was posted. `completed`:
  /// for a failed operation, when the group failed. For an all_to_all_v_and_wait() that needed no slow wait (about a
  /// microsecond), it equals `posted`. For a device operation, it is when the host saw that all awaited data had
  /// arrived.
  Time started, posted, completed;
  /// Set for pending operations and for those that failed: ranks whose data is missing. If no data is missing: ranks
  /// that have not taken what this rank sends. A receive from any rank lists all other ranks.
  std::vector<int> waiting_for;
};

}  // namespace headway::comm
