// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "channel/all_to_all_operation.hpp"
#include "channel/channel_context.hpp"
#include "observe/flight_recorder.hpp"
#include "observe/lag_advisor.hpp"
#include "observe/trace_log.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace headway::comm {

/// Observers of one all-to-all channel: counters, flight records, trace and lag advice. The channel reports each step
/// of an operation to this class only. Observers change no result and no order.
///
/// The set of observers is fixed, so there is no virtual call. Counters and flight records are on by default; their
/// calls for each step are inline. Trace and lag advice are off by default: one flag guards the calls to both, which
/// are in functions named `..._rare` and not inline. Used under the group's lock.
class AllToAllObservers {
 public:
  AllToAllObservers(ChannelContext& context, GroupOptions const& options, int channel);

  // Steps of an operation, in order. `lag`: number of later operations of the channel that are posted.

  /// `operation` starts, on the calling thread. With adapt_lag this sets its busy times, which its messages carry: how
  /// long this rank worked since the start of the operation before, outside of waits (lag_advisor.hpp).
  void started(AllToAllOperation& operation) {
    if (has_rare_) started_rare(operation);
    if (flights_.is_on()) record_sizes(operation);
  }
  /// The call that starts `operation` returns, and some of its messages are not posted yet.
  void queued(AllToAllOperation const& operation) {
    if (flights_.is_on()) flights_.queued(operation.seq());
  }
  /// All messages of `operation` are posted.
  void posted(AllToAllOperation& operation) {
    if (has_rare_) posted_rare(operation);
    if (flights_.is_on()) flights_.posted(operation.seq());
  }
  /// The message of `source` arrived, and its header fits `operation`.
  void arrived(AllToAllOperation const& operation, int source, MessageHeader const& header) {
    auto& stats = context_.peer_stats(source);
    ++stats.messages_received;
    stats.bytes_received += header.size_bytes;
    if (has_rare_) arrived_rare(operation, source, header);
  }
  /// `operation` is complete, and so are all older ones.
  void completed(AllToAllOperation const& operation, std::size_t lag) {
    auto& stats = context_.stats();
    if (stats.lag_histogram.size() <= lag) stats.lag_histogram.resize(lag + 1);
    ++stats.lag_histogram[lag];
    ++stats.operations;
    if (has_rare_) completed_rare(operation, lag);
    if (flights_.is_on()) flights_.completed(operation.seq(), operation.is_blocking);
  }

  // Waits.

  /// The calling thread begins or ends a wait for an operation of `channel`, which may be another channel.
  void wait_began(int channel) {
    if (lag_) lag_->wait_began(channel == channel_);
  }
  void wait_ended(int channel) {
    if (lag_) lag_->wait_ended(channel == channel_);
  }
  /// A wait for `operation` has ended. `from`: the first reading of the clock during the wait. It is the epoch if the
  /// wait was so short that nobody read the clock; its time is then not counted.
  void waited(AllToAllOperation const& operation, std::size_t lag, Clock::time_point from);

  // Results.

  [[nodiscard]] ChannelFlights const& flights() const { return flights_; }
  /// Appends the flight records that are kept of operations below `num_completed`.
  void append_completed_flights(std::uint64_t num_completed, FlightClock::Reading const& clock,
                                std::vector<FlightRecord>& records) const;
  void set_trace_capacity(std::size_t capacity);
  [[nodiscard]] std::vector<TraceEvent> drain_trace() { return trace_.drain(); }
  /// Recommended max_lag, the bound on how far ranks run apart (lag_advisor.hpp). @throws UsageError without adapt_lag.
  [[nodiscard]] int recommended_max_lag() const;

 private:
  void record_sizes(AllToAllOperation const& operation);
  void started_rare(AllToAllOperation& operation);
  void posted_rare(AllToAllOperation& operation) const;
  void arrived_rare(AllToAllOperation const& operation, int source, MessageHeader const& header);
  void completed_rare(AllToAllOperation const& operation, std::size_t lag);

  ChannelContext& context_;
  int channel_;
  bool has_rare_ = false;  ///< The channel is traced, or the group has adapt_lag.
  ChannelFlights flights_;
  TraceLog trace_;
  std::unique_ptr<LagObserver> lag_;  ///< Null without adapt_lag.
};

/// Title of operation `seq` of an all-to-all channel in flight records.
inline FlightTitle flight_title(int channel, std::uint64_t seq) {
  return {.verb = verb_name(Verb::kAllToAll), .seq = seq, .channel = channel};
}

}  // namespace headway::comm
