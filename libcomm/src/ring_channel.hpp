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

/// One all-to-all of this rank.
class RingOperation final : public OperationState {
 public:
  std::vector<std::span<std::byte const>> sends;
  std::vector<std::span<std::byte>> receives;
  DataType data_type = 0;
  int ring = 0;
  std::size_t slot = 0;  ///< Number modulo the ring's depth.
  int next_to_post = 0;  ///< Peers (in order of distance) whose message is accepted so far; size - 1: posted.
  /// A put that still needed its block when it was accepted, and does until flushed(peer) reaches put_count.
  struct UnflushedPut {
    int peer;
    std::uint64_t put_count;
  };
  std::vector<UnflushedPut> unflushed;
  /// A block that its receiver may read from this rank's memory until this rank claims it back.
  struct Offer {
    int peer;
    std::uint16_t transfer;
    bool is_revoked = false;  ///< Claimed back, and not sent yet.
  };
  std::vector<Offer> offers;               ///< Those that may be open.
  Clock::time_point lacks_only_offers_at;  ///< When that was seen first; the epoch: not yet.
  bool is_attended = false;                ///< A thread waits for it from its start to its end.
  bool has_large_blocks = false;           ///< A block to receive may come as an offer.
  BusyTimes busy;                          ///< With adapt_lag.
  int last_arrival = -1;                   ///< Source of the newest block.
  double started_s = 0, posted_s = 0;      ///< Only while tracing.
};

/// A sequence of all-to-alls that ranks may run a bounded number of operations apart.
///
/// Invariants (the proof is in docs/bounded_lag.md): operation t uses slot t mod depth at every receiver; t is posted
/// only when all up to t - k - 1 are complete; operations complete in order; depth is 2 (limit + 1). So a slot is free
/// when it is written, without an acknowledgement. Every operation carries a message for every peer, also when empty.
///
/// A large block is offered: the receiver reads it from the sender's memory, which saves a copy. With a bound above 0
/// the sender must be able to go on without the receiver, so it may revoke the offer: of the two, who claims the slot's
/// word first moves the block, the receiver by reading, the sender by a second message (kRevokedFragment) into the
/// slot.
class RingChannel {
 public:
  RingChannel(Wire& wire, Transfers& transfers, GroupOptions const& options, int ring);

  /// `is_attended`: the caller waits until the operation is done.
  std::shared_ptr<RingOperation> start(AllToAllArgs const& args, std::chrono::milliseconds timeout, bool is_attended);
  void arrived(int source, Tag tag);
  /// Posts what may be posted and completes what is complete; appends the completed to `completed`.
  void progress(std::vector<std::shared_ptr<OperationState>>& completed);
  void set_max_lag(int max_lag) { max_lag_ = max_lag; }
  [[nodiscard]] int max_lag() const { return max_lag_; }
  /// Sends the blocks that were offered in vain for too long. @returns when to look again.
  Deadline revoke_offers(Clock::time_point now);
  [[nodiscard]] bool idle() const { return operations_.empty(); }
  /// All operations below this number are complete.
  [[nodiscard]] std::uint64_t num_completed() const { return num_completed_; }
  /// Whether something is pending that this rank must act upon: an operation to post, or a large block to fetch.
  [[nodiscard]] bool needs_looks() const {
    return num_posted_ < num_started_ || num_with_large_blocks_ > 0 || num_unsent_ > 0;
  }
  /// Whether the oldest pending operation still needs something from `peer`.
  [[nodiscard]] bool needs(int peer) const;
  /// What the oldest pending operation lacks: "operation 7 of all_to_all_v lacks 512 bytes from rank 2".
  [[nodiscard]] std::string describe_missing() const;
  void append_completed_flights(FlightClock::Reading const& clock, std::vector<FlightRecord>& records) const;
  void append_pending_flights(FlightClock::Reading const& clock, std::vector<FlightRecord>& records) const;
  /// Notes that `operation`, which nobody else noted the end of, is done now.
  void note_completed(RingOperation const& operation);
  /// Notes that `operation` was started now, unless it was posted.
  void note_started(RingOperation const& operation);
  /// Ends all pending operations with `status`; appends them to `completed`.
  void cancel(Status const& status, std::vector<std::shared_ptr<OperationState>>& completed);
  void set_trace_capacity(std::size_t capacity);
  std::vector<TraceEvent> drain_trace();
  /// Counts a wait for `operation`, just completed, that began at `from`.
  void waited(RingOperation& operation, Clock::time_point from);
  /// With adapt_lag: this thread begins or ends a wait for an exchange of channel `ring`, this one or another.
  void wait_began(int ring);
  void wait_ended(int ring);
  /// @throws UsageError without adapt_lag.
  [[nodiscard]] int recommended_max_lag() const;
  /// The first deadline of the pending operations.
  [[nodiscard]] Deadline earliest_deadline(Clock::time_point now) const;

 private:
  std::shared_ptr<RingOperation> recycled_operation();
  [[nodiscard]] bool may_post(std::uint64_t number) const;
  /// Posts what may be posted.
  void post_due();
  bool post(RingOperation& operation);
  /// The peer whose message comes next. Ranks start with different ones, so that no receiver is the first of all
  /// senders.
  [[nodiscard]] int next_peer(RingOperation const& operation) const {
    int const unwrapped = wire_.rank() + 1 + operation.next_to_post;
    return unwrapped < wire_.size() ? unwrapped : unwrapped - wire_.size();
  }
  void prepare_payloads(AllToAllArgs const& args);
  bool send_block(RingOperation& operation, int peer);
  /// Whether a block goes to the slot of its message in one put.
  [[nodiscard]] bool fits_slot(std::span<std::byte const> block, int peer) const {
    return block.size() <= std::min(wire_.layout().ring_slot_bytes(), wire_.traits(peer).max_put_bytes);
  }
  [[nodiscard]] bool offer(RingOperation& operation, int peer, MessageHeader header);
  /// Whether the slots that blocks of this size use in turn are too large to stay in cache.
  [[nodiscard]] bool leaves_cache(RingOperation const& operation) const;
  void revoke(RingOperation& operation);
  void note_put(RingOperation& operation, int peer);
  [[nodiscard]] bool is_flushed(RingOperation::UnflushedPut const& put) const;
  void receive_block(RingOperation& operation, int source);
  void revocation_arrived(int source, std::uint64_t number);
  void copy_out(RingOperation& operation, int source);
  void report_disagreement(RingOperation const& operation, int source, MessageHeader const& header);
  [[nodiscard]] std::size_t next_slot(std::size_t slot) const { return slot + 1 < depth_ ? slot + 1 : 0; }
  [[nodiscard]] bool is_complete(RingOperation const& operation) const;
  void complete_front(std::vector<std::shared_ptr<OperationState>>& completed);
  void complete_early(std::vector<std::shared_ptr<OperationState>>& completed);
  void record_trace(RingOperation const& operation, int lag);
  void record_sizes(RingOperation const& operation, AllToAllArgs const& args);
  void record_post(RingOperation const& operation);
  void record_completion(RingOperation const& operation);
  [[nodiscard]] FlightTitle flight_title(std::uint64_t number) const;
  /// Whether data of `source` is lacking, or `peer` has not taken what it is sent.
  [[nodiscard]] bool lacks(RingOperation const& operation, int source) const;
  [[nodiscard]] bool is_untaken(RingOperation const& operation, int peer) const;
  [[nodiscard]] Tag tag_of(RingOperation const& operation, std::uint8_t fragment) const {
    return {.channel = static_cast<std::uint8_t>(ring_),
            .operation = static_cast<std::uint16_t>(operation.number()),
            .fragment = fragment};
  }
  /// Slot of a pending or coming operation: its number modulo the depth, without a division.
  [[nodiscard]] std::size_t slot_of(std::uint64_t number) const {
    std::size_t const slot = front_slot_ + static_cast<std::size_t>(number - num_completed_);
    return slot < depth_ ? slot : slot - depth_;
  }
  /// Notes in `marks` that something of `source` came for an operation. @returns false, and counts it, if it is noted.
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
  std::size_t pull_bytes_;
  std::size_t offer_footprint_;
  std::chrono::microseconds offer_patience_;
  std::uint64_t num_started_ = 0;  ///< Operations started; the next one's number.
  std::uint64_t num_posted_ = 0;
  int num_with_large_blocks_ = 0;    ///< Pending operations that may get an offer.
  int num_unsent_ = 0;               ///< Blocks claimed back that wait for credit.
  std::uint64_t num_completed_ = 0;  ///< All operations below this are copied out.
  std::uint64_t num_early_ = 0;      ///< Mutant kCompleteOutOfOrder: operations that are done behind the front one.
  std::size_t front_slot_ = 0;       ///< num_completed_ modulo the depth.
  std::size_t started_slot_ = 0;     ///< num_started_ modulo the depth.
  std::deque<std::shared_ptr<RingOperation>> operations_;  ///< num_completed_ to num_started_ - 1.
  std::vector<std::uint64_t> arrivals_;      ///< (depth, size) number + 1 of the operation whose message has arrived.
  std::vector<std::uint64_t> revocations_;   ///< (depth, size) the same for blocks that were sent after all.
  std::vector<std::uint64_t> num_arrivals_;  ///< (size) Mutant kCountArrivals: notifications by source.
  std::vector<std::shared_ptr<RingOperation>> pool_;  ///< A ring, in the order in which they were handed out.
  std::size_t oldest_pooled_ = 0;
  std::unique_ptr<LagAdvisor> advisor_;  ///< With adapt_lag.
  BusyClock busy_clock_;
  std::thread::id starter_;          ///< With adapt_lag: the thread that started the newest operation.
  FlightRing<FlightEntry> flights_;  ///< By number.
  std::vector<TraceEvent> trace_;
  std::size_t trace_capacity_ = 0;
};

}  // namespace headway::comm
