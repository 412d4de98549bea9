// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "group/flight_dump.hpp"
#include "runtime/completion_thread.hpp"
#include "runtime/exit_hooks.hpp"
#include "runtime/hooks.hpp"
#include "tensors/work_tensors.hpp"

#include <headway/comm/device_group.hpp>
#include <headway/comm/group.hpp>

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace headway::c10d_backend {

/// Shared owner of a Group and of its completion thread (which runs callbacks after operations complete), held by a
/// backend and its unfinished works.
///
/// A forked child (a DataLoader worker) inherits the object but not the connection. There the group is neither used nor
/// destroyed, so the parent's peers notice nothing.
class GroupHandle final : public ExitHook {
 public:
  /// Time for which a failure waits for abort hooks before it is reported.
  static constexpr std::chrono::milliseconds kHookTime{500};
  /// Time for which abort() and the end of the program wait for them.
  static constexpr std::chrono::milliseconds kLongHookTime{30000};

  /// `device_slot_bytes`: see comm::DeviceOptions::slot_bytes.
  GroupHandle(std::unique_ptr<comm::Group> group, std::shared_ptr<FlightDump> flight_dump,
              std::size_t device_slot_bytes);
  ~GroupHandle() override;

  /// True if this process got the object by fork().
  [[nodiscard]] bool is_inherited() const;
  /// @throws UsageError in a forked child.
  [[nodiscard]] comm::Group& group() const;
  /// The group's exchanges on CUDA device `ordinal`, created at the first call.
  /// @throws UsageError if an earlier call named another device.
  [[nodiscard]] comm::DeviceGroup& device_group(int ordinal);
  /// Null if no exchange has used a device yet.
  [[nodiscard]] comm::DeviceGroup* existing_device_group() const;
  /// Keeps the tensors of operations without a waiting caller until the device is done with them.
  void keep_until_done(std::vector<comm::DeviceOperationPtr> operations, WorkTensors tensors);
  /// Frees the kept tensors with which the device is done.
  void release_completed();
  /// Calls `task` on the completion thread when all `operations` are done, with any outcome. Polls each of them for up
  /// to `poll_time` first.
  /// @returns false if all are done by then: the caller must run `task` itself.
  /// @throws SystemError, with no effect, if there can be no such thread.
  [[nodiscard]] bool when_done(std::vector<comm::OperationPtr> const& operations, std::function<void()> task,
                               std::chrono::microseconds poll_time);

  /// Abort hooks, completion hooks and timeout extensions of the group.
  [[nodiscard]] Hooks& hooks() const { return *hooks_; }
  /// Runs the abort hooks, but waits for them no longer than `hook_time`, then fails the group with `reason`.
  void abort(std::string const& reason, std::chrono::milliseconds hook_time = kHookTime);

  /// Flight records (last operations) of the group as JSON.
  [[nodiscard]] std::string flight_text() const;
  /// Text for the error of a failed operation that names the file of the flight records. Writes the file if needed.
  /// Empty if no folder was given.
  [[nodiscard]] std::string failure_note() const;

  // ExitHook: at program exit the group is left. That ends all pending operations, whoever holds their works.
  [[nodiscard]] Order order() const override { return Order::kGroup; }
  std::string deliver(Deadline deadline) override;
  void leave() override;
  [[nodiscard]] bool end(Deadline deadline) override;

 private:
  /// Tensors of operations that no work tracks any more.
  struct PendingRelease {
    std::vector<comm::DeviceOperationPtr> operations;
    WorkTensors tensors;
  };

  /// True if live peers may still write to the tensors; these are then never freed.
  static bool is_lost(PendingRelease const& kept);
  /// Leaks `tensors`.
  static void leak(WorkTensors tensors);

  std::unique_ptr<comm::Group> group_;
  std::size_t device_slot_bytes_;
  mutable std::mutex device_mutex_;  ///< Guards the next two members. Taken before the group's locks.
  std::unique_ptr<comm::DeviceGroup> device_group_;
  std::vector<PendingRelease> pending_releases_;
  std::shared_ptr<CompletionThread> completions_;
  std::shared_ptr<FlightDump> flight_dump_;
  std::shared_ptr<Hooks> hooks_ = std::make_shared<Hooks>();
  pid_t owner_;  ///< Process that created the object.
};

/// Fails the group with `reason`, if it still exists.
void abort_if_alive(std::weak_ptr<GroupHandle> const& handle, std::string const& reason);

}  // namespace headway::c10d_backend
