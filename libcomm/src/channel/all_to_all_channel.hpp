// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "channel/all_to_all_observers.hpp"
#include "channel/all_to_all_operation.hpp"
#include "channel/all_to_all_sender.hpp"
#include "channel/channel_context.hpp"
#include "channel/rendezvous_protocol.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace headway::comm {

/// Channel for all-to-alls with bounded lag: ranks may run up to max_lag operations apart. all_to_all_channel.cpp
/// explains the algorithm, docs/bounded_lag.md proves it.
///
/// A large block goes by rendezvous: the receiver reads it from the sender's memory, which saves a copy. With max_lag
/// above 0 the sender must be able to go on without the receiver, so it may revoke the RTS. Both claim the slot's word,
/// and the one that gets it moves the block: the receiver reads the sender's memory, or the sender puts the block into
/// the slot, with a second tag (kRevokedFragment).
///
/// Used under the group's lock.
class AllToAllChannel {
 public:
  AllToAllChannel(ChannelContext& context, RendezvousProtocol& rendezvous, GroupOptions const& options, int channel);

  /// Starts an all-to-all; posts it if max_lag and the credit (messages that the transport still accepts to a peer)
  /// allow. `is_blocking`: the caller waits until it is done.
  std::shared_ptr<AllToAllOperation> start(AllToAllArgs const& args, std::chrono::milliseconds timeout,
                                           bool is_blocking);
  /// Handles a tag of this channel from `source`.
  void arrived(int source, Tag tag);
  /// Posts operations that may be posted, completes finished ones in order, and appends the latter to `completed`.
  void progress(std::vector<std::shared_ptr<OperationState>>& completed);
  void set_max_lag(int max_lag) { max_lag_ = max_lag; }
  [[nodiscard]] int max_lag() const { return max_lag_; }
  /// Revokes overdue RTS of operations that wait for nothing else, and sends those blocks.
  /// @returns when to call again.
  Deadline revoke_rts(Clock::time_point now);
  [[nodiscard]] bool idle() const { return operations_.empty(); }
  /// All operations below this number are complete: the number of the oldest pending one.
  [[nodiscard]] std::uint64_t num_completed() const { return num_completed_; }
  /// One more than the number of the newest all-to-all that a peer has posted and this rank has not started, as far as
  /// it knows; 0 if there is none.
  [[nodiscard]] std::uint64_t num_ahead() const { return num_seen_early_ > num_started_ ? num_seen_early_ : 0; }
  /// Must this rank act without a further arrival? True if an operation is not posted, a large block may have to be
  /// fetched, or a revoked block is not sent.
  [[nodiscard]] bool needs_polling() const {
    return num_posted_ < num_started_ || num_with_large_blocks_ > 0 || sender_.num_unsent() > 0;
  }
  /// Does the newest pending operation lack the message of `peer`, or is a message of this rank not posted or flushed
  /// yet?
  [[nodiscard]] bool needs(int peer) const;
  /// Describes what the oldest pending operation lacks: "operation 7 of all_to_all_v lacks 512 bytes from rank 2".
  [[nodiscard]] std::string describe_missing() const;
  /// Appends the flight records of pending operations to `records`.
  void append_pending_flights(FlightClock::Reading const& clock, std::vector<FlightRecord>& records) const;
  /// Appends those of the last completed operations.
  void append_completed_flights(FlightClock::Reading const& clock, std::vector<FlightRecord>& records) const {
    observers_.append_completed_flights(num_completed_, clock, records);
  }
  /// Ends all pending operations with `status` and appends them to `completed`.
  void cancel(Status const& status, std::vector<std::shared_ptr<OperationState>>& completed);
  /// A wait for `operation`, which is complete, took time. `from`: when the clock was first read; the epoch: never.
  void waited(AllToAllOperation const& operation, Clock::time_point from) {
    observers_.waited(operation, lag_of(operation), from);
  }
  /// Trace, lag advice and waits.
  [[nodiscard]] AllToAllObservers& observers() { return observers_; }
  /// Earliest deadline of all pending operations.
  [[nodiscard]] Deadline earliest_deadline(Clock::time_point now) const;

 private:
  /// Does max_lag allow to post `seq` next?
  [[nodiscard]] bool may_post(std::uint64_t seq) const;
  /// Posts operations in order, as far as max_lag and the credit allow.
  void post_due();
  /// Number of later operations that are posted.
  [[nodiscard]] std::size_t lag_of(AllToAllOperation const& operation) const {
    return static_cast<std::size_t>(num_posted_ - operation.seq() - 1);
  }
  /// Checks the header from `source`, then copies the block out or starts to fetch the block that an RTS announces.
  void receive_block(AllToAllOperation& operation, int source);
  /// The block of a revoked RTS is in the slot.
  void revocation_arrived(int source, std::uint64_t seq);
  /// Copies a block from its slot to the output.
  void copy_out(AllToAllOperation& operation, int source);
  /// Reports a message that does not match `operation`; the group fails with it.
  void report_disagreement(AllToAllOperation const& operation, int source, MessageHeader const& header);
  [[nodiscard]] std::size_t next_slot(std::size_t slot) const { return slot + 1 < depth_ ? slot + 1 : 0; }
  /// Are all parts done, and all puts flushed?
  [[nodiscard]] bool is_complete(AllToAllOperation const& operation) const;
  void complete_front(std::vector<std::shared_ptr<OperationState>>& completed);
  /// lacks(): is data of `source` missing? is_untaken(): does `peer` still have to take data of this rank?
  [[nodiscard]] bool lacks(AllToAllOperation const& operation, int source) const;
  [[nodiscard]] bool is_untaken(AllToAllOperation const& operation, int peer) const;
  /// Slot of a pending or coming operation: number mod depth, computed without a division.
  [[nodiscard]] std::size_t slot_of(std::uint64_t seq) const {
    std::size_t const slot = front_slot_ + static_cast<std::size_t>(seq - num_completed_);
    return slot < depth_ ? slot : slot - depth_;
  }
  /// Marks that a message of `source` came for operation `seq`.
  /// @returns false, and counts a repeat, if it was marked.
  bool mark(std::vector<std::uint64_t>& marks, std::uint64_t seq, int source);
  [[nodiscard]] bool is_marked(std::vector<std::uint64_t> const& marks, AllToAllOperation const& operation,
                               int source) const {
    return marks[operation.slot * size_ + static_cast<std::size_t>(source)] == operation.seq() + 1;
  }
  [[nodiscard]] bool has_arrived(AllToAllOperation const& operation, int source) const {
    return is_marked(arrivals_, operation, source);
  }

  ChannelContext& context_;
  RendezvousProtocol& rendezvous_;
  int channel_;
  int max_lag_;
  std::size_t depth_;
  std::size_t size_;
  std::size_t large_bytes_;  ///< A block of this size may come as an RTS.
  AllToAllSender sender_;
  AllToAllObservers observers_;
  std::uint64_t num_started_ = 0;     ///< Number of operations started: number of the next one.
  std::uint64_t num_seen_early_ = 0;  ///< Messages of operations from num_started_ on came up to this number.
  std::uint64_t num_posted_ = 0;      ///< All operations below this number are posted: sent to every peer.
  int num_with_large_blocks_ = 0;     ///< Pending operations with has_large_blocks.
  std::uint64_t num_completed_ = 0;   ///< All operations below this number are complete.
  std::size_t front_slot_ = 0;        ///< num_completed_ mod depth.
  std::size_t started_slot_ = 0;      ///< num_started_ mod depth.
  std::deque<std::shared_ptr<AllToAllOperation>> operations_;  ///< Operations num_completed_ to num_started_ - 1.
  /// (depth, size) Number + 1 of the newest operation whose message has arrived.
  std::vector<std::uint64_t> arrivals_;
  /// (depth, size) Number + 1 of the newest operation whose revoked block has arrived.
  std::vector<std::uint64_t> revocations_;
  AllToAllOperationPool pool_;
};

}  // namespace headway::comm
