#pragma once

#include "data_type_text.hpp"
#include "flight_recorder.hpp"
#include "headway/comm/endpoint.hpp"
#include "headway/comm/group.hpp"
#include "landing_layout.hpp"
#include "message_header.hpp"
#include "mutant.hpp"

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace headway::comm {

/// What the channels of one group share: the endpoint, the layout, the counters, the flight recorder, and the queue of
/// tags that wait for credit. Used under the group's lock.
class Wire {
 public:
  Wire(std::unique_ptr<Endpoint> endpoint, LandingLayout layout, GroupOptions const& options)
      : endpoint_(std::move(endpoint)),
        rank_(endpoint_->rank()),
        size_(endpoint_->size()),
        layout_(layout),
        landing_(endpoint_->landing().data()),
        allow_pull_(options.allow_pull),
        headers_are_timed_(options.adapt_lag),
        data_type_name_(options.data_type_name),
        mutant_(mutant_from(options.mutant)),
        flight_recorder_(options.flight_records, size_) {
    stats_.peers.resize(static_cast<std::size_t>(size_));
    for (int peer = 0; peer < size_; ++peer) {
      traits_.push_back(peer == rank_ ? PeerTraits() : endpoint_->traits(peer));
    }
  }

  [[nodiscard]] Endpoint& endpoint() { return *endpoint_; }
  [[nodiscard]] Endpoint const& endpoint() const { return *endpoint_; }
  /// Leaves the endpoint as it is, never to be destroyed here.
  void abandon() { static_cast<void>(endpoint_.release()); }
  [[nodiscard]] LandingLayout const& layout() const { return layout_; }
  [[nodiscard]] GroupStats& stats() { return stats_; }
  [[nodiscard]] PeerStats& peer_stats(int peer) { return stats_.peers[static_cast<std::size_t>(peer)]; }
  [[nodiscard]] FlightRecorder& flight_recorder() { return flight_recorder_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  /// What the endpoint says of `peer`, kept here as it is asked for at each put.
  [[nodiscard]] PeerTraits const& traits(int peer) const { return traits_[static_cast<std::size_t>(peer)]; }

  /// Whether this rank reads large payloads from the memory of `peer`.
  [[nodiscard]] bool pulls_from(int peer) const { return allow_pull_ && traits(peer).can_get; }

  /// Whether this build has `mutant` and the group asks for it.
  [[nodiscard]] bool plants(Mutant mutant) const { return is_planted(mutant_, mutant); }

  [[nodiscard]] std::byte const* landed(std::uint64_t offset) const { return landing_ + offset; }

  /// Puts one message. @returns whether it was accepted; if not, try again after a poll.
  [[nodiscard]] bool put(int peer, std::uint64_t offset, MessageHeader const& header,
                         std::span<std::byte const> payload, Tag tag) {
    Status const status =
        endpoint_->put({.peer = peer, .offset = offset}, header.bytes(headers_are_timed_), payload, tag);
    if (!status.ok()) return false;
    mark_put(peer, payload.size());
    return true;
  }

  /// Counts a put that went to the endpoint directly.
  void mark_put(int peer, std::size_t payload_bytes) {
    needs_submit_ = true;
    auto& stats = peer_stats(peer);
    ++stats.messages_sent;
    stats.bytes_sent += payload_bytes;
  }

  /// Makes a tag without bytes visible at `peer`, now or as soon as there is credit.
  void signal(int peer, Tag tag) {
    signals_.push_back({peer, tag});
    send_signals();
  }

  /// Whether signals wait for credit: nobody but this rank can move them on.
  [[nodiscard]] bool has_signals() const { return !signals_.empty(); }

  /// Signals that find no credit stay, and hold up none to other peers; those to a peer that is lost are dropped.
  void send_signals() {
    if (signals_.empty()) return;  // As in nearly each poll.
    std::erase_if(signals_, [this](Signal const& signal) {
      Status const status = endpoint_->put({.peer = signal.peer}, {}, {}, signal.tag);
      needs_submit_ = needs_submit_ || status.ok();
      return status.code() != StatusCode::kWouldBlock;
    });
  }

  void submit() {
    if (std::exchange(needs_submit_, false)) endpoint_->submit();
  }

  [[nodiscard]] std::string name_of(DataType type) const { return text_of(type, data_type_name_); }
  /// The first disagreement found with a peer; the group fails with it after the poll that found it.
  void report_error(std::string text) {
    if (error_.empty()) error_ = std::move(text);
  }
  [[nodiscard]] std::string const& error() const { return error_; }

  /// A peer is gone or gave up, perhaps because of another's failure, which this rank will see as well a moment later:
  /// the group fails with that one, or with this text if none comes.
  void report_symptom(std::string text) {
    if (symptom_.empty()) symptom_ = std::move(text);
  }
  [[nodiscard]] std::string const& symptom() const { return symptom_; }

 private:
  struct Signal {
    int peer;
    Tag tag;
  };

  std::unique_ptr<Endpoint> endpoint_;
  int rank_, size_;
  LandingLayout layout_;
  std::byte const* landing_;
  bool allow_pull_;
  bool headers_are_timed_;
  DataTypeName data_type_name_;
  std::vector<PeerTraits> traits_;  ///< (size)
  Mutant mutant_;
  GroupStats stats_;
  FlightRecorder flight_recorder_;
  std::deque<Signal> signals_;
  bool needs_submit_ = false;
  std::string error_, symptom_;
};

}  // namespace headway::comm
