// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "channel/message_header.hpp"
#include "device/peer_copy/link.hpp"
#include "device/peer_copy/streams.hpp"
#include "headway/comm/device_group.hpp"
#include "observe/flight_recorder.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace headway::comm {

/// Failure of a device group. Operations share it, since they may outlive the group.
struct DeviceFailure {
  std::atomic<bool> is_set = false;
  Status status;  ///< Written once, before is_set (release); read after it (acquire).
};

/// A word in host memory that a stream waits for on behalf of an operation. A CPU watches it for timeouts and reports.
struct AwaitedWord {
  std::shared_ptr<peer_copy::Link const> link;
  int peer;
  int channel;               ///< Exchanges on different channels are numbered apart.
  peer_copy::SyncWord word;  ///< `arrived`, or a word that allows to send.
  std::uint64_t value;       ///< Count that the word must reach: fragments, or messages for `ready`.
  std::size_t num_bytes;     ///< Size of the data that the word announces, for reports.

  /// Does the word announce received data?
  [[nodiscard]] bool is_of_receive() const { return word == &peer_copy::SyncWords::arrived; }
  /// Has the word reached `value`? Read by the CPU, without the driver. kReleased and above mean failure.
  [[nodiscard]] bool has_come() const {
    auto const now = (link->sync_words(channel).*word).load(std::memory_order_acquire);
    return now >= value && now < peer_copy::kReleased;
  }
};

/// The DeviceOperation of DeviceGroupImpl.
///
/// A failed peer first releases the waits of the streams, by a word in shared memory. The reason follows in a message
/// over a socket. An operation that sees only the word is not done yet: it waits up to kReasonTime for the message, so
/// that its error names the reason.
class DeviceOperationImpl final : public DeviceOperation {
 public:
  /// `flight` counts as posted once set_completion() is called.
  DeviceOperationImpl(std::shared_ptr<peer_copy::Context const> context, std::shared_ptr<DeviceFailure const> failure,
                      P2PFlight const& flight, Deadline deadline)
      : context_(std::move(context)), failure_(std::move(failure)), flight_(flight), deadline_(deadline) {}

  [[nodiscard]] bool done() override;
  [[nodiscard]] Status status() override;
  /// Do peers write into the output itself, instead of a slot that is copied out?
  [[nodiscard]] bool is_written_by_peers() const override { return is_written_by_peers_; }
  void join(DeviceStream stream) override;

  /// Sets the event after the last part of the operation, when that is enqueued.
  void set_completion(std::shared_ptr<CUevent_st> completion) {
    completion_ = std::move(completion);
    flight_.entry.posted = FlightClock::ticks();
  }
  [[nodiscard]] std::shared_ptr<CUevent_st> const& completion() const { return completion_; }
  void set_written_by_peers() { is_written_by_peers_ = true; }
  void await(AwaitedWord word) { awaited_.push_back(std::move(word)); }

  [[nodiscard]] bool is_late(Clock::time_point now) const { return now >= deadline_; }
  /// Have all awaited words come?
  [[nodiscard]] bool has_all() const;
  /// Does it wait for a word of `peer`?
  [[nodiscard]] bool needs(int peer) const;
  [[nodiscard]] std::string describe_missing() const;
  [[nodiscard]] P2PFlight const& flight() const { return flight_; }
  [[nodiscard]] FlightRecord flight_record(FlightState state, FlightClock::Reading const& clock) const;

 private:
  /// Time for the message of a peer that is known to have failed.
  static constexpr auto kReasonTime = std::chrono::seconds(1);

  /// Peer of an awaited word that has released its waits; -1 if none has.
  [[nodiscard]] int find_failed_peer() const;
  /// Has the group failed itself, or is the time for the message of a failed peer over? Call it only if a peer has
  /// failed: the first call begins that time.
  [[nodiscard]] bool has_reason() const;
  /// First failure of this group or of a peer; ok: none so far, or the reason may still come.
  [[nodiscard]] Status first_failure() const;

  std::shared_ptr<peer_copy::Context const> context_;
  std::shared_ptr<DeviceFailure const> failure_;
  P2PFlight flight_;
  Deadline deadline_;
  /// Fixed once the operation is pending: the group's threads read it under the lock that made it pending.
  std::vector<AwaitedWord> awaited_;
  /// Null until the operation is enqueued. The event returns to its pool with the last owner.
  std::shared_ptr<CUevent_st> completion_;
  bool is_written_by_peers_ = false;
  std::atomic<bool> is_good_ = false;  ///< It was seen to be done before any failure.
  /// Time since the epoch of Clock when the failure of a peer was first seen; 0: not yet.
  mutable std::atomic<Clock::rep> peer_failure_seen_ = 0;
};

}  // namespace headway::comm
