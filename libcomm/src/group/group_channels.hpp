// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "channel/all_to_all_channel.hpp"
#include "channel/channel_context.hpp"
#include "channel/p2p_channel.hpp"
#include "channel/rendezvous_protocol.hpp"
#include "group/survivors.hpp"
#include "observe/flight_recorder.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace headway::comm {

/// All channels of a group on this rank, and their pending operations. Knows nothing of threads that wait, of failures
/// and of reports from other ranks. Used under the group's lock.
class GroupChannels {
 public:
  using Operations = std::vector<std::shared_ptr<OperationState>>;
  /// Gets operations made of point-to-point messages as they end, and clears the vector.
  using Release = std::function<void(Operations& done)>;

  GroupChannels(std::unique_ptr<Endpoint> endpoint, GroupOptions const& options, ReceiveLayout layout,
                ProtocolRules const& rules, Release release);

  [[nodiscard]] ChannelContext& context() { return context_; }
  [[nodiscard]] ChannelContext const& context() const { return context_; }
  [[nodiscard]] P2PChannel& p2p() { return p2p_; }
  [[nodiscard]] AllToAllChannel& all_to_all(int channel) { return *all_to_alls_[static_cast<std::size_t>(channel)]; }
  [[nodiscard]] std::vector<std::unique_ptr<AllToAllChannel>> const& all_to_alls() const { return all_to_alls_; }

  // Operations made of point-to-point messages.

  /// Number of the next send or receive on this rank.
  std::uint64_t next_message_seq() { return num_messages_++; }
  /// A new operation. The caller adds its messages with p2p(), then calls finish_start().
  [[nodiscard]] std::shared_ptr<OperationState> make_operation(Verb verb, std::uint64_t seq,
                                                               std::chrono::milliseconds timeout, P2PFlight flight);
  /// Completes an operation without pending parts; else adds it to the pending ones.
  void finish_start(std::shared_ptr<OperationState> const& operation);

  // Progress.

  /// Handles a tag from `source`.
  void arrived(int source, Tag tag) {
    if (tag.channel < all_to_alls_.size()) return all_to_alls_[tag.channel]->arrived(source, tag);
    message_arrived(source, tag);
  }
  /// Moves signals (tags without bytes), large transfers (rendezvous) and point-to-point messages on.
  void progress();
  /// Posts and completes what the all-to-all channels can, and appends completed operations to `done`.
  void complete_all_to_alls(Operations& done) {
    for (auto& channel : all_to_alls_) {
      if (!channel->idle()) channel->progress(done);
    }
  }
  /// Revokes overdue RTS (ready to send: the peer may read the block) of all channels, and sends those blocks instead.
  /// @returns when to call again.
  Deadline revoke_rts(Clock::time_point now);
  /// Ends all pending operations with `status` and appends them to `done`.
  void cancel(Status const& status, Operations& done);

  // State of the pending operations.

  [[nodiscard]] bool is_pending() const;
  /// Must this rank act without a further arrival that rings its doorbell?
  /// @param has_events do arrivals ring? Otherwise posted receives are polled for
  [[nodiscard]] bool needs_polling(bool has_events) const;
  /// Do peers put payloads into outputs of this rank now?
  [[nodiscard]] bool has_windows() const { return rendezvous_.has_windows(); }
  /// Does any operation need `peer`?
  [[nodiscard]] bool needs(int peer) const;
  /// Does any operation still receive from `peer`?
  [[nodiscard]] bool receives_from(int peer) const {
    return p2p_.expects_from(peer) || rendezvous_.receives_from(peer);
  }
  /// Must `peer` still take data of `operation`?
  [[nodiscard]] bool sends_to(int peer, OperationState const& operation) const {
    return rendezvous_.sends_to(peer, operation) || p2p_.has_queued(peer, operation);
  }
  /// Describes what the first incomplete all-to-all waits for, or the first other operation. Empty: there is none.
  [[nodiscard]] std::string describe_missing_all_to_all() const;
  [[nodiscard]] std::string describe_missing_message() const;
  /// An operation that only waits for peers to take data of this rank. Null if there is none.
  [[nodiscard]] std::shared_ptr<OperationState> find_undelivered() const;
  [[nodiscard]] std::string describe_undelivered(OperationState const& operation) const;
  /// Earliest deadline of all pending operations.
  [[nodiscard]] Deadline earliest_deadline(Clock::time_point now) const;
  /// Number of operations completed, for shrink().
  [[nodiscard]] Progress completed_counts() const;

  // Flight records; only if the group keeps them.

  void append_completed_flights(FlightClock::Reading const& clock, std::vector<FlightRecord>& records) const;
  [[nodiscard]] std::vector<FlightRecord> pending_flights(FlightClock::Reading const& clock) const;

 private:
  /// Handles a tag of a channel that is not for all-to-alls.
  void message_arrived(int source, Tag tag);
  /// A part of `operation` ended. Completes it if it was the last one.
  void part_done(OperationState& operation);
  [[nodiscard]] FlightRecord pending_flight(OperationState const& operation, FlightClock::Reading const& clock) const;

  ChannelContext context_;
  RendezvousProtocol rendezvous_;
  P2PChannel p2p_;
  std::vector<std::unique_ptr<AllToAllChannel>> all_to_alls_;
  Release release_;
  /// Pending operations made of point-to-point messages, in no order.
  Operations p2p_operations_;
  std::uint64_t num_messages_ = 0;  ///< Sends and receives started on this rank.
};

}  // namespace headway::comm
