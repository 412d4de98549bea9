// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "channel/message_header.hpp"
#include "channel/protocol_rules.hpp"
#include "channel/receive_layout.hpp"
#include "headway/comm/endpoint.hpp"
#include "headway/comm/group_monitor.hpp"
#include "headway/comm/group_options.hpp"
#include "observe/flight_recorder.hpp"

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace headway::comm {

/// State that all channels of a group share: endpoint, layout, counters, flight recorder, and the queue of tags that
/// wait for credit (without credit the transport refuses a put to that peer with kWouldBlock). Used under the group's
/// lock.
class ChannelContext {
 public:
  ChannelContext(std::unique_ptr<Endpoint> endpoint, ReceiveLayout layout, GroupOptions const& options,
                 ProtocolRules const& rules = {})
      : endpoint_(std::move(endpoint)),
        rank_(endpoint_->rank()),
        size_(endpoint_->size()),
        layout_(layout),
        receive_buffer_(endpoint_->receive_buffer().data()),
        allow_get_(options.allow_get),
        headers_are_timed_(options.adapt_lag),
        data_type_name_(options.data_type_name),
        rules_(rules),
        flight_recorder_(options.flight_records, size_) {
    stats_.peers.resize(static_cast<std::size_t>(size_));
    for (int peer = 0; peer < size_; ++peer) {
      traits_.push_back(peer == rank_ ? PeerTraits() : endpoint_->traits(peer));
    }
  }

  [[nodiscard]] Endpoint& endpoint() { return *endpoint_; }
  [[nodiscard]] Endpoint const& endpoint() const { return *endpoint_; }
  /// Gives up the endpoint without destroying it, for a forked child.
  void abandon() { static_cast<void>(endpoint_.release()); }
  [[nodiscard]] ReceiveLayout const& layout() const { return layout_; }
  [[nodiscard]] GroupStats& stats() { return stats_; }
  [[nodiscard]] PeerStats& peer_stats(int peer) { return stats_.peers[static_cast<std::size_t>(peer)]; }
  [[nodiscard]] FlightRecorder& flight_recorder() { return flight_recorder_; }
  [[nodiscard]] FlightRecorder const& flight_recorder() const { return flight_recorder_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  /// Traits of `peer`. Cached, because every put needs them.
  [[nodiscard]] PeerTraits const& traits(int peer) const { return traits_[static_cast<std::size_t>(peer)]; }

  /// Does this rank read large payloads from the memory of `peer`?
  [[nodiscard]] bool gets_from(int peer) const { return allow_get_ && traits(peer).can_get; }

  [[nodiscard]] ProtocolRules& rules() { return rules_; }
  [[nodiscard]] ProtocolRules const& rules() const { return rules_; }

  /// Address of `offset` in this rank's receive buffer.
  [[nodiscard]] std::byte const* received_at(std::uint64_t offset) const { return receive_buffer_ + offset; }

  /// Puts one message. @returns whether the endpoint accepted it; if not, try again after a poll.
  [[nodiscard]] bool put(int peer, std::uint64_t offset, MessageHeader const& header,
                         std::span<std::byte const> payload, Tag tag) {
    Status const status =
        endpoint_->put({.peer = peer, .offset = offset}, header.bytes(headers_are_timed_), payload, tag);
    if (!status.ok()) return false;
    mark_put(peer, payload.size());
    return true;
  }

  /// Counts a put that bypassed put().
  void mark_put(int peer, std::size_t payload_bytes) {
    needs_submit_ = true;
    auto& stats = peer_stats(peer);
    ++stats.messages_sent;
    stats.bytes_sent += payload_bytes;
  }

  /// Makes a tag without bytes visible at `peer`, at once or as soon as credit comes back.
  void signal(int peer, Tag tag) {
    signals_.push_back({peer, tag});
    send_signals();
  }

  /// Do signals wait for credit? Only a later call of send_signals() by this rank sends them.
  [[nodiscard]] bool has_signals() const { return !signals_.empty(); }

  /// Sends waiting signals. Those without credit stay and do not delay signals to other peers. Those to a lost peer are
  /// dropped.
  void send_signals() {
    if (signals_.empty()) return;  // The common case.
    std::erase_if(signals_, [this](Signal const& signal) {
      Status const status = endpoint_->put({.peer = signal.peer}, {}, {}, signal.tag);
      needs_submit_ = needs_submit_ || status.ok();
      return status.code() != StatusCode::kWouldBlock;
    });
  }

  /// Lets the endpoint send the puts accepted since the last call.
  void submit() {
    if (std::exchange(needs_submit_, false)) endpoint_->submit();
  }

  [[nodiscard]] std::string name_of(DataType type) const { return text_of(type, data_type_name_); }
  /// Reports a disagreement with a peer. The group fails with the first one, after the poll that found it.
  void report_error(std::string text) {
    if (error_.empty()) error_ = std::move(text);
  }
  [[nodiscard]] std::string const& error() const { return error_; }

  /// Reports that a peer is gone or gave up. Another rank's failure may be the cause, and its report may arrive a
  /// moment later. The group fails with that report, or with this text if none comes.
  void report_symptom(std::string text) {
    if (symptom_.empty()) symptom_ = std::move(text);
  }
  [[nodiscard]] std::string const& symptom() const { return symptom_; }

 private:
  /// A tag that waits for credit.
  struct Signal {
    int peer;
    Tag tag;
  };

  std::unique_ptr<Endpoint> endpoint_;
  int rank_, size_;
  ReceiveLayout layout_;
  std::byte const* receive_buffer_;
  bool allow_get_;
  bool headers_are_timed_;  ///< Headers carry busy times (adapt_lag).
  DataTypeName data_type_name_;
  std::vector<PeerTraits> traits_;             ///< (size)
  [[no_unique_address]] ProtocolRules rules_;  ///< Has no state, except in tests that break a rule.
  GroupStats stats_;
  FlightRecorder flight_recorder_;
  std::deque<Signal> signals_;
  bool needs_submit_ = false;
  std::string error_, symptom_;
};

}  // namespace headway::comm
