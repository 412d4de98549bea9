// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "channel/operation_state.hpp"
#include "observe/lag_advisor.hpp"
#include "observe/trace_log.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace headway::comm {

/// State of one all-to-all on this rank. Completed objects are reused by later operations.
class AllToAllOperation final : public OperationState {
 public:
  std::vector<std::span<std::byte const>> sends;
  /// Blocks from each rank. With `received_bytes`, a block shrinks from its capacity to what came when that is known.
  std::vector<std::span<std::byte>> receives;
  std::span<std::size_t> received_bytes;  ///< See AllToAllArgs; empty: blocks have the senders' sizes.
  DataType data_type = 0;
  int channel = 0;
  std::size_t slot = 0;  ///< Operation number modulo the depth of the ring of receive slots.
  int next_to_post = 0;  ///< Number of peers whose message was accepted, in order of distance; size - 1: all.
  /// A put that still reads its block: until Endpoint::flushed(peer) reaches put_count.
  struct UnflushedPut {
    int peer;
    std::uint64_t put_count;
  };
  std::vector<UnflushedPut> unflushed;
  /// A block that its receiver may read from this rank's memory until this rank revokes the RTS.
  struct Rts {
    int peer;
    std::uint16_t transfer;   ///< Number of the rendezvous, counted per peer.
    bool is_revoked = false;  ///< This rank claimed the block, and has not sent it yet.
  };
  std::vector<Rts> open_rts;            ///< Revocable RTS that may still be open.
  Clock::time_point lacks_only_rts_at;  ///< When it was first seen to wait for its RTS only; the epoch: not yet.
  bool is_blocking = false;             ///< A thread waits for it from its start to its end (all_to_all_v_and_wait()).
  bool has_large_blocks = false;        ///< At least one block to receive is large enough to come as an RTS.
  int last_arrival = -1;                ///< Source of the block that arrived last; -1: none yet.
  BusyTimes busy;                       ///< Busy times of this rank before it; with adapt_lag.
  TraceTimes trace;                     ///< Only while its channel is traced.

  /// Begins operation `seq`. The caller sets `slot` and `has_large_blocks`.
  void begin(AllToAllArgs const& args, std::uint64_t seq, std::chrono::milliseconds timeout, bool blocking);
  /// Records the size of the block from `source`, which is at most its capacity. Needs `received_bytes`.
  void shrink_receive(std::size_t source, std::size_t bytes) {
    receives[source] = receives[source].first(bytes);
    received_bytes[source] = bytes;
  }
};

/// Operations of one channel for reuse.
class AllToAllOperationPool {
 public:
  /// An operation that nobody uses: an old one or a new one.
  std::shared_ptr<AllToAllOperation> take();

 private:
  std::vector<std::shared_ptr<AllToAllOperation>> pool_;  ///< Circular buffer, in the order of their last use.
  std::size_t oldest_ = 0;
};

}  // namespace headway::comm
