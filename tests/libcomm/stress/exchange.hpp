// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/group.hpp"
#include "history_plan.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace headway::comm::stress {

/// One rank's part of one all_to_all_v with its memory. Receive blocks lie between guard bytes.
class Exchange {
 public:
  /// Starts exchange `index` of `channel`.
  Exchange(Group& group, HistoryPlan const& plan, int channel, std::uint64_t index);

  [[nodiscard]] Operation& operation() { return *operation_; }
  [[nodiscard]] bool done() const { return operation_->done(); }
  [[nodiscard]] int channel() const { return channel_; }
  [[nodiscard]] std::string name() const;

  /// Compares all received bytes of a completed exchange, then spoils the memory, since the caller owns it again.
  /// @throws HistoryFailure
  void verify();

 private:
  [[nodiscard]] BlockId block_from(int sender, int receiver) const {
    return {.history_seed = plan_.seed, .kind = channel_, .index = index_, .sender = sender, .receiver = receiver};
  }
  /// Places send and receive blocks in memory_, with kGuardBytes between them.
  void lay_out();
  [[noreturn]] void fail(std::string const& what) const;

  HistoryPlan const& plan_;
  int rank_, size_;
  int channel_;
  std::uint64_t index_;
  std::vector<std::byte> memory_;                       ///< All blocks and guard bytes.
  std::vector<std::span<std::byte>> sends_, receives_;  ///< (size) spans in memory_.
  std::vector<std::size_t> received_bytes_;             ///< (size) actual sizes; empty if receive spans are exact.
  OperationPtr operation_;
};

}  // namespace headway::comm::stress
