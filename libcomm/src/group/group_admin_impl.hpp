// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/endpoint.hpp"
#include "headway/comm/group_admin.hpp"

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headway::comm {

class GroupCore;
class OperationState;

/// Limits, failure, leaving and shrinking of a group, applied to its GroupCore.
class GroupAdminImpl final : public GroupAdmin {
 public:
  /// `core` may be constructed later. `size`: number of ranks.
  GroupAdminImpl(GroupCore& core, int size) : core_(core), refuses_(static_cast<std::size_t>(size)) {}

  void set_timeout(std::chrono::milliseconds timeout) override;
  [[nodiscard]] std::chrono::milliseconds timeout() const override;
  void set_max_lag(int max_lag, std::optional<int> channel) override;
  [[nodiscard]] int max_lag(int channel) override;
  void abort(std::string const& reason) override;
  Status deliver(std::chrono::milliseconds timeout) override;
  void leave(std::string const& reason) override;
  [[nodiscard]] ShrunkGroup shrink(std::span<int const> ranks_to_exclude, std::chrono::milliseconds timeout) override;
  void on_failure(FailureCallback callback) override;
  void attach(GroupObserver& observer) override;
  void detach(GroupObserver& observer) noexcept override;
  void send_oob(int peer, std::string_view text) override;

 private:
  /// Refuses further messages of the peers that no receive of this rank waits for.
  void send_refusals();
  /// A peer that refuses messages, but must still take data of `operation`. -1: there is none.
  [[nodiscard]] int find_refusal(OperationState const& operation, Clock::time_point now) const;

  GroupCore& core_;
  std::vector<bool> refuses_;  ///< (size) This rank refused further messages of the peer. Under the group's lock.
  bool is_shrunk_ = false;     ///< A shrink() is running or has made its group. Under the group's lock.
};

}  // namespace headway::comm
