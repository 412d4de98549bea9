// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/flight_record.hpp"
#include "headway/comm/status.hpp"

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headway::comm {

struct ShrunkGroup;
class GroupObserver;

/// Administers a group: its limits, its end, and who hears of it. Thread-safe; the group owns it (Group::admin()).
class GroupAdmin {
 public:
  virtual ~GroupAdmin() = default;

  /// Timeout of operations that start from now on. Local to this rank.
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;
  [[nodiscard]] virtual std::chrono::milliseconds timeout() const = 0;
  /// Sets how many all-to-alls this rank may be ahead of its peers, from 0 to options().max_lag_limit. All-to-alls of
  /// different channels are numbered apart; an empty `channel` sets all channels. Local to this rank; needs no
  /// agreement.
  virtual void set_max_lag(int max_lag, std::optional<int> channel = std::nullopt) = 0;
  [[nodiscard]] virtual int max_lag(int channel) = 0;

  /// Fails all pending and later operations with `reason`, here and at the peers.
  virtual void abort(std::string const& reason) = 0;
  /// Waits until the messages that this rank started to send are delivered: operations that need no more data from a
  /// peer, but whose memory peers still need. Call it before leaving the group.
  /// @returns ok, also if the group had failed before; kTimeout when `timeout` passes first, naming peer and message;
  /// kPeerLost if a peer leaves without having received a message; or the failure that ended the group meanwhile.
  virtual Status deliver(std::chrono::milliseconds timeout) = 0;
  /// Leaves the group at once, as its destructor does. Pending operations fail here; at peers, those that need this
  /// rank fail. All later calls fail with `reason`.
  virtual void leave(std::string const& reason) = 0;
  /// Makes a new group of the remaining ranks, after a failure or to exclude `ranks_to_exclude`. All remaining ranks
  /// must call it. The old group fails if it has not failed yet. The ranks agree over the connections of the old group
  /// and need no store. Ranks that send nothing for `timeout` are excluded. The new group keeps the values of
  /// set_max_lag(). The caller resumes where ShrunkGroup says, and destroys the old group.
  /// @throws OperationError if another rank goes on without this one (kAborted) or the remaining ranks did not agree in
  /// time (kTimeout); SystemError if they could not be connected.
  [[nodiscard]] virtual ShrunkGroup shrink(std::span<int const> ranks_to_exclude,
                                           std::chrono::milliseconds timeout) = 0;

  using FailureCallback = std::function<void(Status const& failure, std::vector<FlightRecord> const& records)>;
  /// Calls `callback` once when the group fails, before any operation is done with that error, or at once if the group
  /// has already failed. Any thread of this rank may run it, also when no thread waits. It runs under the group's lock:
  /// it must not throw, call into the group, or wait for a thread that does. Leaving the group is not a failure.
  virtual void on_failure(FailureCallback callback) = 0;

  /// Attaches or detaches a DeviceGroup (a GroupObserver), which shares this group's failures and time limits. At most
  /// one at a time.
  virtual void attach(GroupObserver& observer) = 0;
  virtual void detach(GroupObserver& observer) noexcept = 0;
  /// Sends `text` to the GroupObserver attached at `peer`, in order. Less than kMaxOobBytes (endpoint.hpp).
  virtual void send_oob(int peer, std::string_view text) = 0;
};

}  // namespace headway::comm
