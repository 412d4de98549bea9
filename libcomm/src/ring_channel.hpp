#pragma once

#include "lag_advisor.hpp"
#include "operation_state.hpp"
#include "transfer.hpp"
#include "wire.hpp"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace headway::comm {

/// State of one all-to-all on this rank. Completed objects are reused by later operations.
class RingOperation final : public OperationState {
 public:
  std::vector<std::span<std::byte const>> sends;
  std::vector<std::span<std::byte>> receives;
  DataType data_type = 0;
  int ring = 0;
  std::size_t slot = 0;  ///< Operation number modulo the depth of the ring.
  int next_to_post = 0;  ///< Number of peers whose message was accepted, in order of distance; size - 1: all.
  /// A put that still reads its block: until flushed(peer) reaches put_count.
  struct UnflushedPut {
    int peer;
    std::uint64_t put_count;
  };
  std::vector<UnflushedPut> unflushed;
  /// A block that its receiver may read from this rank's memory until this rank revokes the offer.
  struct Offer {
    int peer;
    std::uint16_t transfer;
    bool is_revoked = false;  ///< This rank claimed the block, and has not sent it yet.
  };
  std::vector<Offer> offers;               ///< Revocable offers that may still be open.
  Clock::time_point lacks_only_offers_at;  ///< When it was first seen to wait for its offers only; the epoch: not yet.
  bool is_attended = false;            ///< A thread waits for it from its start to its end (all_to_all_v_and_wait()).
  bool has_large_blocks = false;       ///< At least one block to receive is large enough to come as an offer.
  BusyTimes busy;                      ///< Busy times of this rank before it; with adapt_lag.
  int last_arrival = -1;               ///< Source of the block that arrived last; -1: none yet.
  double started_s = 0, posted_s = 0;  ///< Seconds of Clock since its epoch; only while tracing.
};

/// Channel for all-to-alls with bounded lag: ranks may run up to max_lag operations apart. ring_channel.cpp explains
/// the algorithm, docs/bounded_lag.md proves it.
///
/// A large block is offered: the receiver reads it from the sender's memory, which saves a copy. With a bound above 0
/// the sender must be able to go on without the receiver, so it may revoke the offer. Both claim the slot's word, and
/// the one that gets it moves the block: the receiver reads the sender's memory, or the sender puts the block into the
/// slot, with a second tag (kRevokedFragment).
///
/// Used under the group's lock.
class RingChannel {
 public:
  RingChannel(Wire& wire, Transfers& transfers, GroupOptions const& options, int ring);

  /// Starts an all-to-all; posts it if the bound and the credit allow. `is_attended`: the caller waits until it is
  /// done.
  std::shared_ptr<RingOperation> start(AllToAllArgs const& args, std::chrono::milliseconds timeout, bool is_attended);
  /// Handles a tag of this channel from `source`.
  void arrived(int source, Tag tag);
  /// Posts operations that may be posted, completes finished ones in order, and appends the latter to `completed`.
  void progress(std::vector<std::shared_ptr<OperationState>>& completed);
  void set_max_lag(int max_lag) { max_lag_ = max_lag; }
  [[nodiscard]] int max_lag() const { return max_lag_; }
  /// Revokes overdue offers of operations that wait for nothing else, and sends those blocks.
  /// @returns when to call again.
  Deadline revoke_offers(Clock::time_point now);
  [[nodiscard]] bool idle() const { return operations_.empty(); }
  /// All operations below this number are complete: the number of the oldest pending one.
  [[nodiscard]] std::uint64_t num_completed() const { return num_completed_; }
  /// Must this rank act without a further arrival? True if an operation is not posted, a large block may have to be
  /// fetched, or a revoked block is not sent.
  [[nodiscard]] bool needs_looks() const {
    return num_posted_ < num_started_ || num_with_large_blocks_ > 0 || num_unsent_ > 0;
  }
  /// Does the newest pending operation lack the message of `peer`, or is a message of this rank not posted or flushed
  /// yet?
  [[nodiscard]] bool needs(int peer) const;
  /// Describes what the oldest pending operation lacks: "operation 7 of all_to_all_v lacks 512 bytes from rank 2".
  [[nodiscard]] std::string describe_missing() const;
  /// Append the flight records of completed or of pending operations to `records`.
  void append_completed_flights(FlightClock::Reading const& clock, std::vector<FlightRecord>& records) const;
  void append_pending_flights(FlightClock::Reading const& clock, std::vector<FlightRecord>& records) const;
  /// Records now as the completion time of an attended `operation`: record_completion() assumed that it ended when
  /// posted.
  void note_completed(RingOperation const& operation);
  /// Records now as the start time of `operation`, unless posting recorded one.
  void note_started(RingOperation const& operation);
  /// Ends all pending operations with `status` and appends them to `completed`.
  void cancel(Status const& status, std::vector<std::shared_ptr<OperationState>>& completed);
  /// Traces up to `capacity` completed operations; 0: stops. drain_trace() returns and clears them.
  void set_trace_capacity(std::size_t capacity);
  std::vector<TraceEvent> drain_trace();
  /// Adds the wait for `operation`, which has just completed and was waited for since `from`, to the statistics.
  void waited(RingOperation& operation, Clock::time_point from);
  /// The calling thread begins or ends a wait for an exchange of channel `ring`, this one or another (adapt_lag).
  void wait_began(int ring);
  void wait_ended(int ring);
  /// Recommended bound (lag_advisor.hpp). @throws UsageError without adapt_lag.
  [[nodiscard]] int recommended_max_lag() const;
  /// Earliest deadline of all pending operations.
  [[nodiscard]] Deadline earliest_deadline(Clock::time_point now) const;

 private:
  /// A reset object from the pool, or a new one.
  std::shared_ptr<RingOperation> recycled_operation();
  /// Does the lag bound allow to post `number` next?
  [[nodiscard]] bool may_post(std::uint64_t number) const;
  /// Posts operations in order, as far as the bound and the credit allow.
  void post_due();
  /// Sends the messages to all peers. @returns false if credit ran out; a later call goes on at next_to_post.
  bool post(RingOperation& operation);
  /// Peer that gets the next message. Ranks start with different peers, so that no receiver is first for all senders.
  [[nodiscard]] int next_peer(RingOperation const& operation) const {
    int const unwrapped = wire_.rank() + 1 + operation.next_to_post;
    return unwrapped < wire_.size() ? unwrapped : unwrapped - wire_.size();
  }
  /// Lets the transport prefetch the slots at the peers.
  void prepare_payloads(AllToAllArgs const& args);
  /// Puts or offers the block for `peer`. @returns false if credit is missing.
  bool send_block(RingOperation& operation, int peer);
  /// Does a block go into the slot of its message with one put?
  [[nodiscard]] bool fits_slot(std::span<std::byte const> block, int peer) const {
    return block.size() <= std::min(wire_.layout().ring_slot_bytes(), wire_.traits(peer).max_put_bytes);
  }
  /// Offers the block for `peer`. @returns false if credit or a transfer number is missing.
  [[nodiscard]] bool offer(RingOperation& operation, int peer, MessageHeader header);
  /// Are the bytes of the whole ring, with blocks of this size, too many to stay in cache (offer_footprint)?
  [[nodiscard]] bool leaves_cache(RingOperation const& operation) const;
  /// Claims the open offers of `operation` and sends their blocks. Those without credit stay for the next call.
  void revoke(RingOperation& operation);
  /// Notes a put that still needs its block.
  void note_put(RingOperation& operation, int peer);
  [[nodiscard]] bool is_flushed(RingOperation::UnflushedPut const& put) const;
  /// Checks the header from `source`, then copies the block out or takes the offer.
  void receive_block(RingOperation& operation, int source);
  /// The block of a revoked offer is in the slot.
  void revocation_arrived(int source, std::uint64_t number);
  /// Copies a block from its slot to the output.
  void copy_out(RingOperation& operation, int source);
  /// Reports a message that does not match `operation`; the group fails with it.
  void report_disagreement(RingOperation const& operation, int source, MessageHeader const& header);
  [[nodiscard]] std::size_t next_slot(std::size_t slot) const { return slot + 1 < depth_ ? slot + 1 : 0; }
  /// Are all parts done, and all puts flushed?
  [[nodiscard]] bool is_complete(RingOperation const& operation) const;
  void complete_front(std::vector<std::shared_ptr<OperationState>>& completed);
  /// Mutant kCompleteOutOfOrder only.
  void complete_early(std::vector<std::shared_ptr<OperationState>>& completed);
  void record_trace(RingOperation const& operation, int lag);
  void record_sizes(RingOperation const& operation, AllToAllArgs const& args);
  void record_post(RingOperation const& operation);
  void record_completion(RingOperation const& operation);
  [[nodiscard]] FlightTitle flight_title(std::uint64_t number) const;
  /// lacks(): is data of `source` missing? is_untaken(): does `peer` still have to take data of this rank?
  [[nodiscard]] bool lacks(RingOperation const& operation, int source) const;
  [[nodiscard]] bool is_untaken(RingOperation const& operation, int peer) const;
  [[nodiscard]] Tag tag_of(RingOperation const& operation, std::uint8_t fragment) const {
    return {.channel = static_cast<std::uint8_t>(ring_),
            .operation = static_cast<std::uint16_t>(operation.number()),
            .fragment = fragment};
  }
  /// Slot of a pending or coming operation: number mod depth, computed without a division.
  [[nodiscard]] std::size_t slot_of(std::uint64_t number) const {
    std::size_t const slot = front_slot_ + static_cast<std::size_t>(number - num_completed_);
    return slot < depth_ ? slot : slot - depth_;
  }
  /// Marks that a message of `source` came for operation `number`.
  /// @returns false, and counts a repeat, if it was marked.
  bool mark(std::vector<std::uint64_t>& marks, std::uint64_t number, int source);
  [[nodiscard]] bool is_marked(std::vector<std::uint64_t> const& marks, RingOperation const& operation,
                               int source) const {
    return marks[operation.slot * size_ + static_cast<std::size_t>(source)] == operation.number() + 1;
  }
  [[nodiscard]] bool has_arrived(RingOperation const& operation, int source) const {
    return is_marked(arrivals_, operation, source);
  }

  Wire& wire_;
  Transfers& transfers_;
  int ring_;
  int max_lag_;
  std::size_t depth_;
  std::size_t size_;
  std::size_t pull_bytes_;  ///< GroupOptions::pull_bytes.
  std::size_t offer_footprint_;
  std::chrono::microseconds offer_patience_;
  std::uint64_t num_started_ = 0;  ///< Number of operations started: number of the next one.
  std::uint64_t num_posted_ = 0;
  int num_with_large_blocks_ = 0;    ///< Pending operations with has_large_blocks.
  int num_unsent_ = 0;               ///< Revoked blocks that wait for credit.
  std::uint64_t num_completed_ = 0;  ///< All operations below this number are complete.
  std::uint64_t num_early_ = 0;      ///< Mutant kCompleteOutOfOrder: operations that completed before an older one.
  std::size_t front_slot_ = 0;       ///< num_completed_ mod depth.
  std::size_t started_slot_ = 0;     ///< num_started_ mod depth.
  std::deque<std::shared_ptr<RingOperation>> operations_;  ///< Operations num_completed_ to num_started_ - 1.
  /// (depth, size) Number + 1 of the newest operation whose message has arrived.
  std::vector<std::uint64_t> arrivals_;
  /// (depth, size) Number + 1 of the newest operation whose revoked block has arrived.
  std::vector<std::uint64_t> revocations_;
  std::vector<std::uint64_t> num_arrivals_;  ///< (size) Mutant kCountArrivals: notifications from each source.
  /// Operations for reuse: a circular buffer, in the order of their last use.
  std::vector<std::shared_ptr<RingOperation>> pool_;
  std::size_t oldest_pooled_ = 0;
  std::unique_ptr<LagAdvisor> advisor_;  ///< Null without adapt_lag.
  BusyClock busy_clock_;
  std::thread::id starter_;          ///< Thread that started the newest operation; with adapt_lag.
  FlightRing<FlightEntry> flights_;  ///< Flight entries, indexed by operation number.
  std::vector<TraceEvent> trace_;
  std::size_t trace_capacity_ = 0;
};

}  // namespace headway::comm
