// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "group/group_channels.hpp"

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>

namespace headway::comm {

/// A collective that is being started: point-to-point messages under one collective number, which counts the
/// collectives that this rank started before. collective.cpp explains why no rank forwards. Used under the group's
/// lock.
class Collective {
 public:
  /// Starts this rank's next collective. `root` is -1 for a collective without one. `flight`: its sizes, for the
  /// flight recorder, and the data type of its messages.
  Collective(GroupChannels& channels, Verb verb, int root, std::chrono::milliseconds timeout,
             FlightEntry const& flight);

  void send(int peer, std::span<std::byte const> block) const;
  void receive(int peer, std::span<std::byte> block) const;
  /// One message to each other rank: the same block, or blocks[peer].
  void send_to_all(std::span<std::byte const> block) const;
  void send_to_each(std::span<std::span<std::byte const> const> blocks) const;
  /// One message from each other rank, into `blocks` (size) or without bytes.
  void receive_from_all(std::span<std::span<std::byte> const> blocks) const;
  void receive_nothing_from_all() const;

  [[nodiscard]] std::shared_ptr<OperationState> const& operation() const { return operation_; }

 private:
  [[nodiscard]] int rank() const { return channels_.context().rank(); }
  [[nodiscard]] int size() const { return channels_.context().size(); }
  /// Ranks send in order of distance, so that no receiver is first for all senders.
  [[nodiscard]] int peer_at(int distance) const { return (rank() + distance) % size(); }

  GroupChannels& channels_;
  std::shared_ptr<OperationState> operation_;
  Match match_;  ///< Collective number and root; receivers find the messages by it.
  DataType type_;
};

/// Copies the block of a rank to itself. @throws UsageError, which begins with `what`, if the sizes differ.
void copy_own_block(std::span<std::byte const> from, std::span<std::byte> to, char const* what);

}  // namespace headway::comm
