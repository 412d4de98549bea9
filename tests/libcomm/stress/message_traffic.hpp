// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/group.hpp"
#include "history_plan.hpp"
#include "random.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace headway::comm::stress {

/// One rank's point-to-point messages of one history. A message and its receive have equal match numbers, like the tags
/// of MPI; kMatchAny messages are received from any rank.
class MessageTraffic {
 public:
  MessageTraffic(Group& group, HistoryPlan const& plan);

  /// Starts a send or receive of the plan. @returns false if all are started.
  bool start_one(Random& random);
  [[nodiscard]] bool finished() const { return num_to_start_ == 0 && pending_.empty(); }
  /// A random operation that is not done, or null.
  [[nodiscard]] Operation* some_pending(Random& random);
  /// Checks and releases all completed operations. @throws HistoryFailure
  void collect();

 private:
  /// A started send or receive with its memory.
  struct Message {
    OperationPtr operation;
    bool is_send;
    int peer;             ///< -1 for a receive from any rank.
    std::uint64_t index;  ///< Index among the messages of the pair.
    std::vector<std::byte> memory;
  };

  [[nodiscard]] BlockId message_from(int sender, int receiver, std::uint64_t index) const {
    return {.history_seed = plan_.seed, .kind = kMessageKind, .index = index, .sender = sender, .receiver = receiver};
  }
  void start_send(int peer);
  void start_receive(int peer);
  /// Starts a receive that takes a kMatchAny message of any rank.
  void start_receive_any();
  /// Skips messages of `peer` that match-any receives take.
  void skip_match_any(int peer);
  void verify(Message& message);
  void verify_any(Message& message);
  void verify_received(Message& message, int sender, std::uint64_t index) const;

  Group& group_;
  HistoryPlan const& plan_;
  int rank_, size_;
  std::vector<std::uint64_t> num_sent_, num_received_;  ///< (size) messages of each pair that were started or skipped.
  std::vector<std::uint64_t> next_any_;                 ///< (size) search for match-any messages from here.
  std::uint64_t num_any_left_ = 0;
  std::uint64_t num_to_start_ = 0;  ///< Sends and receives of the plan that are not started.
  std::deque<Message> pending_;     ///< In the order of their starts.
};

}  // namespace headway::comm::stress
