// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "exchange.hpp"
#include "headway/comm/group.hpp"
#include "history_plan.hpp"
#include "message_traffic.hpp"
#include "random.hpp"

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace headway::comm::stress {

/// Actions of one rank in one history: it starts, waits for a while, tests, and changes its bound (max_lag). It
/// checks all received data. It never blocks, so one thread can run all ranks of a group.
class RankScript {
 public:
  RankScript(Group& group, HistoryPlan const& plan);

  /// Takes one step, when the scheduler says so. @throws HistoryFailure, or an error of the library.
  void step();
  [[nodiscard]] bool finished() const;
  /// Describes what the rank still lacks, for a history that does not end.
  [[nodiscard]] std::string describe() const;

 private:
  /// Starts an exchange on a random channel. @returns false if all are started.
  bool start_exchange();
  /// Chooses an operation to test for some steps.
  void await_something();
  void test(Operation* operation);
  void collect();
  void nudge();

  Group& group_;
  HistoryPlan const& plan_;
  Random random_;
  std::uint64_t eagerness_;                                         ///< Steps in 16 that may start something.
  std::vector<std::uint64_t> num_started_;                          ///< (num_channels)
  std::vector<std::deque<std::unique_ptr<Exchange>>> outstanding_;  ///< (num_channels), by start.
  MessageTraffic messages_;
  Operation* awaited_ = nullptr;  ///< Operation that the next steps test; null: none.
  std::uint64_t patience_ = 0;    ///< Further steps for which it waits for awaited_.
};

}  // namespace headway::comm::stress
