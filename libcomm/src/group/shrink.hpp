// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "group/group_core.hpp"

#include <chrono>
#include <optional>

namespace headway::comm {

/// One run of GroupAdmin::shrink(): the remaining ranks of a failed group make a new group. shrink.cpp explains it.
/// Takes the group's lock itself. GroupCore::survivors() must have begun.
class Shrink {
 public:
  Shrink(GroupCore& core, std::chrono::milliseconds timeout) : core_(core), timeout_(timeout) {}

  /// @throws as GroupAdmin::shrink().
  [[nodiscard]] ShrunkGroup run();

 private:
  using ProgressLock = GroupCore::ProgressLock;
  class MemberStore;

  /// Exchanges claims until all members agree on who they are.
  void agree();
  /// Connects the members. @returns nullopt if that failed because another rank was lost: the members must agree again.
  std::optional<ShrunkGroup> connect_members();
  /// Sleeps briefly, then polls for OOB messages. @throws OperationError if a peer goes on without this rank.
  void listen(ProgressLock& lock);

  GroupCore& core_;
  std::chrono::milliseconds timeout_;
};

}  // namespace headway::comm
