// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/endpoint.hpp"
#include "headway/comm/group_admin.hpp"
#include "headway/comm/group_monitor.hpp"
#include "headway/comm/group_options.hpp"
#include "headway/comm/status.hpp"
#include "headway/comm/store.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace headway::comm {

/// One rank's part of an operation, as its waiters see it. Thread-safe.
class Operation {
 public:
  virtual ~Operation() = default;
  [[nodiscard]] virtual bool done() const = 0;
  /// Outcome. Valid once done() returns true.
  [[nodiscard]] virtual Status status() const = 0;
  /// Sequence number of the operation, from 0. All-to-alls count within their channel. For error messages and traces.
  [[nodiscard]] virtual std::uint64_t seq() const = 0;
  /// Rank that a receive_any() matched; -1 for other operations. Valid once done() returns true.
  [[nodiscard]] virtual int source() const = 0;
};
using OperationPtr = std::shared_ptr<Operation>;

/// Arguments of one all-to-all. Without `received_bytes`, blocks to receive are exactly as large as what is sent, the
/// own one too.
struct AllToAllArgs {
  /// (size) Block for each rank. Its memory belongs to the library until the operation is done.
  std::span<std::span<std::byte const> const> sends;
  std::span<std::span<std::byte> const> receives;  ///< (size) Block from each rank.
  DataType data_type = 0;
  int channel = 0;  ///< Sequence of all-to-alls that this one belongs to: below options().num_channels.
  /// (size) If given, the blocks of `receives` are capacities, and this gets the bytes that came from each rank. Valid
  /// once the operation is done; its memory belongs to the library until then. A larger block is an error on this rank,
  /// found before anything is written.
  std::span<std::size_t> received_bytes{};
};

/// A set of ranks that exchange bytes. Thread-safe. Most calls also advance pending operations of the group.
///
/// All ranks must start the operations of one kind in the same order. Starting never blocks. Source and output memory
/// belong to the library until the operation is done.
///
/// This class starts operations and waits for them. admin() changes limits and ends the group; monitor() observes it.
class Group {
 public:
  /// Connects `size` ranks.
  /// @throws UsageError if an argument or option is out of its range.
  /// @throws SystemError that names what differs between ranks, or who is missing.
  static std::unique_ptr<Group> connect(int rank, int size, Store& store, GroupOptions options);
  virtual ~Group() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual GroupOptions const& options() const = 0;
  /// Valid as long as the group.
  [[nodiscard]] virtual GroupAdmin& admin() = 0;
  [[nodiscard]] virtual GroupMonitor& monitor() = 0;

  /// All-to-all with bounded lag: receives[r] gets the block that rank r gave as sends[rank()]. Its messages may leave
  /// at once if at most max_lag (GroupAdmin) older all-to-alls of its channel are pending, else as soon as that holds.
  virtual OperationPtr all_to_all_v(AllToAllArgs const& args) = 0;
  /// all_to_all_v() followed by wait(), for callers with nothing to do meanwhile. Costs less than the two calls.
  virtual Status all_to_all_v_and_wait(AllToAllArgs const& args) = 0;

  /// Point-to-point messages. Those between two ranks with equal `match` (a tag as in MPI, below 2^63) arrive in
  /// order.
  virtual OperationPtr send(std::span<std::byte const> block, int peer, std::uint64_t match, DataType type) = 0;
  virtual OperationPtr receive(std::span<std::byte> block, int peer, std::uint64_t match, DataType type) = 0;
  virtual OperationPtr receive_any(std::span<std::byte> block, std::uint64_t match, DataType type) = 0;

  /// Collectives. Each is synchronous (as with max_lag 0), and all of them share one order.
  virtual OperationPtr broadcast(std::span<std::byte> block, int root, DataType type) = 0;
  /// `receives`: (size) blocks at the root; not used elsewhere.
  virtual OperationPtr gather(std::span<std::byte const> block, std::span<std::span<std::byte> const> receives,
                              int root, DataType type) = 0;
  virtual OperationPtr scatter(std::span<std::span<std::byte const> const> sends, std::span<std::byte> block, int root,
                               DataType type) = 0;
  virtual OperationPtr all_gather(std::span<std::byte const> block, std::span<std::span<std::byte> const> receives,
                                  DataType type) = 0;
  virtual OperationPtr barrier() = 0;

  /// Blocks until `operation` is done. All older all-to-alls of its channel are then done as well.
  /// @returns the operation's status, or kTimeout (the operation goes on) when `timeout` passes first.
  virtual Status wait(Operation& operation, std::optional<std::chrono::milliseconds> timeout = std::nullopt) = 0;
  /// Advances pending operations without blocking. @returns whether `operation` is done.
  virtual bool test(Operation& operation) = 0;
  /// Calls `callback` once, when the operation is done. If it is done before this function returns, the calling thread
  /// runs the callback, otherwise the group's callback thread does. The library holds no lock meanwhile: the callback
  /// may block, call into any group, and destroy groups, this one included. A slow callback delays only later callbacks
  /// of this group. Destroying the group waits for its callbacks, except inside one of them. First polls for up to
  /// `poll_time`, unless ranks share cores: the shortest exchanges end before another thread could wake.
  /// @throws SystemError if the system has no thread left; the callback is then not registered.
  virtual void on_done(Operation& operation, std::function<void()> callback,
                       std::chrono::microseconds poll_time = std::chrono::microseconds(20)) = 0;
};

/// Result of shrink(). Every rank of the new group has completed all operations of the old group below the numbers
/// given here. A rank may have completed a few more; those must be repeated.
struct ShrunkGroup {
  std::unique_ptr<Group> group;
  std::vector<int> ranks;                  ///< (new size) Ranks of the members in the old group, ascending.
  std::vector<std::uint64_t> all_to_alls;  ///< (num_channels) Number of all-to-alls that every member completed.
  std::uint64_t collectives = 0;           ///< Number of other collectives that every member completed.
};

}  // namespace headway::comm
