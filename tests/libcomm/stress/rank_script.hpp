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

/// What one rank does in one history: starts, waits for a while, tests, changes its bound; checks all that it receives.
/// It never blocks, so one thread can run all ranks of a group.
class RankScript {
 public:
  RankScript(Group& group, HistoryPlan const& plan);

  /// Takes one step; the scheduler says when. @throws HistoryFailure, or what the library throws.
  void step();
  [[nodiscard]] bool finished() const;
  /// What it still lacks, for a history that does not end.
  [[nodiscard]] std::string describe() const;

 private:
  bool start_exchange();
  void await_something();
  void test(Operation* operation);
  void collect();
  void nudge();

  Group& group_;
  HistoryPlan const& plan_;
  Random random_;
  std::uint64_t eagerness_;                                         ///< Of 16 steps, how many start something.
  std::vector<std::uint64_t> num_started_;                          ///< (num_channels)
  std::vector<std::deque<std::unique_ptr<Exchange>>> outstanding_;  ///< (num_channels) in the order of their start.
  MessageTraffic messages_;
  Operation* awaited_ = nullptr;
  std::uint64_t patience_ = 0;  ///< Further steps that it waits for awaited_.
};

}  // namespace headway::comm::stress
