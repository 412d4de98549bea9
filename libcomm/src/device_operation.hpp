#pragma once

#include "engines/nvlink/link.hpp"
#include "engines/nvlink/streams.hpp"
#include "flight_recorder.hpp"
#include "headway/comm/device_group.hpp"
#include "message_header.hpp"

#include <atomic>
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
  std::shared_ptr<nvlink::Link const> link;
  int peer;
  int channel;
  nvlink::BoardWord word;  ///< `arrived`, or a word that allows to send.
  std::uint64_t value;
  std::size_t num_bytes;  ///< Size of the block.

  /// Does the word announce received data?
  [[nodiscard]] bool is_of_receive() const { return word == &nvlink::Board::arrived; }
  /// Has the word reached `value`? Read by the CPU, without the driver. kReleased and above mean failure.
  [[nodiscard]] bool has_come() const {
    auto const now = (link->board(channel).*word).load(std::memory_order_acquire);
    return now >= value && now < nvlink::kReleased;
  }
};

/// The DeviceOperation of DeviceGroupImpl.
class DeviceOperationImpl final : public DeviceOperation {
 public:
  /// `flight` counts as posted once set_completion() is called.
  DeviceOperationImpl(std::shared_ptr<nvlink::Context const> context, std::shared_ptr<DeviceFailure const> failure,
                      PairFlight const& flight, Deadline deadline)
      : context_(std::move(context)), failure_(std::move(failure)), flight_(flight), deadline_(deadline) {}

  [[nodiscard]] bool done() override;
  [[nodiscard]] Status status() override;
  [[nodiscard]] bool is_written_by_peers() const override { return is_written_by_peers_; }
  void join(DeviceStream stream) override;

  /// Sets the event after the last part of the operation, when that is enqueued.
  void set_completion(std::shared_ptr<CUevent_st> completion) {
    completion_ = std::move(completion);
    flight_.entry.posted = FlightClock::ticks();
  }
  [[nodiscard]] std::shared_ptr<CUevent_st> const& completion() const { return completion_; }
  void set_written_by_peers() { is_written_by_peers_ = true; }
  /// Adds a word that the operation waits for.
  void await(AwaitedWord word) { awaited_.push_back(std::move(word)); }

  [[nodiscard]] bool is_late(Clock::time_point now) const { return now >= deadline_; }
  /// Have all awaited words come?
  [[nodiscard]] bool has_all() const;
  /// Does it wait for a word of `peer`?
  [[nodiscard]] bool needs(int peer) const;
  [[nodiscard]] std::string describe_missing() const;
  [[nodiscard]] PairFlight const& flight() const { return flight_; }
  [[nodiscard]] FlightRecord flight_record(FlightState state, FlightClock::Reading const& clock) const;

 private:
  /// First failure of this group or of a peer; ok: none so far.
  [[nodiscard]] Status first_failure() const;

  std::shared_ptr<nvlink::Context const> context_;
  std::shared_ptr<DeviceFailure const> failure_;
  PairFlight flight_;
  Deadline deadline_;
  std::vector<AwaitedWord> awaited_;
  std::shared_ptr<CUevent_st> completion_;
  bool is_written_by_peers_ = false;
  std::atomic<bool> is_good_ = false;  ///< It was seen to be done before any failure.
};

}  // namespace headway::comm
