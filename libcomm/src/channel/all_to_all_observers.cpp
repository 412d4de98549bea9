// SPDX-License-Identifier: Apache-2.0

// Observers learn what happens to an exchange. Here are the parts that are off by default or not worth inlining.
//
// Example of a lag: exchange 5 completes while 6 and 7 are posted. Its lag is 2, so lag_histogram[2] grows by one. If
// a thread waited 300 us for it, wait_s_by_lag[2] grows by that, and so does the wait for the peer whose block came
// last: that peer is the one which the rank waited for.
//
// A wait shorter than the polls before the first look at the clock is not counted: measuring it would take longer.

#include "channel/all_to_all_observers.hpp"

namespace headway::comm {

AllToAllObservers::AllToAllObservers(ChannelContext& context, GroupOptions const& options, int channel)
    : context_(context), channel_(channel), has_rare_(options.adapt_lag), flights_(options.flight_records) {
  if (options.adapt_lag) {
    lag_ = std::make_unique<LagObserver>(context.rank(), context.size(), options.max_lag_limit);
  }
}

void AllToAllObservers::record_sizes(AllToAllOperation const& operation) {
  flights_.started(operation.seq(), {.input_bytes = total_bytes(operation.sends),
                                     .output_bytes = total_bytes(operation.receives),
                                     .data_type = operation.data_type});
}

void AllToAllObservers::started_rare(AllToAllOperation& operation) {
  if (lag_) operation.busy = lag_->started(operation.seq());
  operation.trace.started_s = trace_.is_on() ? TraceLog::now_s() : 0;
}

void AllToAllObservers::posted_rare(AllToAllOperation& operation) const {
  if (trace_.is_on()) operation.trace.posted_s = TraceLog::now_s();
}

void AllToAllObservers::arrived_rare(AllToAllOperation const& operation, int source, MessageHeader const& header) {
  if (lag_) lag_->arrived(operation.seq(), source, {header.busy_before_wait_us, header.busy_after_wait_us});
}

void AllToAllObservers::completed_rare(AllToAllOperation const& operation, std::size_t lag) {
  if (lag_) lag_->completed(operation.seq());
  if (!trace_.keeps(operation.trace)) return;
  trace_.add({.seq = operation.seq(),
              .channel = channel_,
              .started_s = operation.trace.started_s,
              .posted_s = operation.trace.posted_s,
              .completed_s = TraceLog::now_s(),
              .bytes_sent = total_bytes(operation.sends),
              .bytes_received = total_bytes(operation.receives),
              .last_peer = operation.last_arrival,
              .lag = static_cast<int>(lag)});
}

void AllToAllObservers::waited(AllToAllOperation const& operation, std::size_t lag, Clock::time_point from) {
  if (operation.is_blocking && flights_.is_on()) flights_.waited(operation.seq());
  if (from == Clock::time_point()) return;
  double const seconds = std::chrono::duration<double>(Clock::now() - from).count();
  auto& stats = context_.stats();
  if (stats.wait_s_by_lag.size() <= lag) stats.wait_s_by_lag.resize(lag + 1);
  stats.wait_s_by_lag[lag] += seconds;
  if (operation.last_arrival < 0) return;
  auto& peer = context_.peer_stats(operation.last_arrival);
  peer.wait_s += seconds;
  ++peer.waits;
}

void AllToAllObservers::append_completed_flights(std::uint64_t num_completed, FlightClock::Reading const& clock,
                                                 std::vector<FlightRecord>& records) const {
  for (std::uint64_t seq = flights_.first(); seq < num_completed; ++seq) {
    records.push_back(
        make_flight_record(flight_title(channel_, seq), *flights_.find(seq), FlightState::kCompleted, clock));
  }
}

void AllToAllObservers::set_trace_capacity(std::size_t capacity) {
  trace_.set_capacity(capacity);
  has_rare_ = trace_.is_on() || lag_ != nullptr;
}

int AllToAllObservers::recommended_max_lag() const {
  expects(lag_ != nullptr, "recommended_max_lag needs a group with adapt_lag");
  return lag_->advice();
}

}  // namespace headway::comm
