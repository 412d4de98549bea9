// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "group/group_admin_impl.hpp"
#include "group/group_core.hpp"
#include "group/group_monitor_impl.hpp"
#include "headway/comm/group.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

namespace headway::comm {

/// The group behind Group::connect(): starts operations and waits for them.
class GroupImpl final : public Group {
 public:
  /// `progress_thread` may be null: then only calls make progress, as tests that replay a schedule need.
  GroupImpl(std::unique_ptr<Endpoint> endpoint, GroupOptions options, ReceiveLayout layout,
            std::shared_ptr<ProgressThread> progress_thread, ConnectionInfo connection_info = {},
            ProtocolRules const& rules = {});

  [[nodiscard]] int rank() const override { return core_.rank(); }
  [[nodiscard]] int size() const override { return core_.size(); }
  [[nodiscard]] GroupOptions const& options() const override { return core_.options(); }
  [[nodiscard]] GroupAdmin& admin() override { return admin_; }
  [[nodiscard]] GroupMonitor& monitor() override { return monitor_; }

  OperationPtr all_to_all_v(AllToAllArgs const& args) override;
  Status all_to_all_v_and_wait(AllToAllArgs const& args) override;
  OperationPtr send(std::span<std::byte const> block, int peer, std::uint64_t match, DataType type) override;
  OperationPtr receive(std::span<std::byte> block, int peer, std::uint64_t match, DataType type) override;
  OperationPtr receive_any(std::span<std::byte> block, std::uint64_t match, DataType type) override;
  OperationPtr broadcast(std::span<std::byte> block, int root, DataType type) override;
  OperationPtr gather(std::span<std::byte const> block, std::span<std::span<std::byte> const> receives, int root,
                      DataType type) override;
  OperationPtr scatter(std::span<std::span<std::byte const> const> sends, std::span<std::byte> block, int root,
                       DataType type) override;
  OperationPtr all_gather(std::span<std::byte const> block, std::span<std::span<std::byte> const> receives,
                          DataType type) override;
  OperationPtr barrier() override;

  Status wait(Operation& operation, std::optional<std::chrono::milliseconds> timeout) override;
  bool test(Operation& operation) override;
  void on_done(Operation& operation, std::function<void()> callback, std::chrono::microseconds poll_time) override;

 private:
  using ProgressLock = GroupCore::ProgressLock;

  std::shared_ptr<AllToAllOperation> start_all_to_all_v(AllToAllArgs const& args, bool is_blocking);
  OperationPtr start_receive(std::span<std::byte> block, int peer, std::uint64_t match, DataType type);
  /// The caller added all messages of `operation`.
  OperationPtr finish_start(std::shared_ptr<OperationState> operation);

  GroupAdminImpl admin_;
  GroupMonitorImpl monitor_;
  GroupCore core_;  ///< Last member: callbacks that still run may use the others.
};

}  // namespace headway::comm
