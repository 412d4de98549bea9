// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/status.hpp"
#include "headway/comm/group.hpp"

#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace headway::serving {

/// How the ranks of a group stop: together, by a barrier that all of them enter once they begin no more batches; or one
/// of them ends the group.
class Departure {
 public:
  /// @param group null: this rank is alone
  explicit Departure(std::shared_ptr<comm::Group> group) : group_(std::move(group)) {}

  /// See RowFetcher::leave().
  [[nodiscard]] bool leave() {
    if (group_ == nullptr || group_->size() == 1) return true;
    if (barrier_ == nullptr) barrier_ = group_->barrier();
    if (!group_->test(*barrier_)) return false;
    if (auto const status = barrier_->status(); !status.ok()) throw base::OperationError(status);
    return true;
  }
  /// See RowFetcher::abort().
  void abort(std::string const& reason) {
    if (group_ != nullptr) group_->admin().abort(reason);
  }
  /// See RowFetcher::wake_on_change().
  void wake_on_change(std::function<void()> const& wake) {
    if (barrier_ != nullptr && !std::exchange(is_armed_, true)) group_->on_done(*barrier_, wake);
  }

 private:
  std::shared_ptr<comm::Group> group_;
  comm::OperationPtr barrier_;
  bool is_armed_ = false;
};

}  // namespace headway::serving
