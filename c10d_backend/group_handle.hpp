#pragma once

#include "completion_thread.hpp"
#include "flight_dump.hpp"
#include "live_parts.hpp"
#include "work_tensors.hpp"

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

/// Owns a Group, and the thread for its completions, on behalf of a backend and of its unfinished works.
///
/// A forked child (a DataLoader worker) inherits the object but not the connection: there the group is neither used nor
/// destroyed, so that the parent's peers notice nothing.
class GroupHandle final : public LivePart {
 public:
  /// `device_slot_bytes`: comm::DeviceOptions::slot_bytes.
  GroupHandle(std::unique_ptr<comm::Group> group, std::shared_ptr<FlightDump> flight_dump,
              std::size_t device_slot_bytes);
  ~GroupHandle() override;

  /// Whether this process got the object by fork().
  [[nodiscard]] bool is_inherited() const;
  /// @throws UsageError in a forked child.
  [[nodiscard]] comm::Group& group() const;
  /// The group's exchanges on CUDA device `ordinal`, made at the first call. @throws UsageError for another device than
  /// that of the first call.
  [[nodiscard]] comm::DeviceGroup& device_group(int ordinal);
  /// Null: no exchange was on a device so far.
  [[nodiscard]] comm::DeviceGroup* existing_device_group() const;
  /// Keeps the tensors of operations that nobody waits for until the device is done with them.
  void keep_until_done(std::vector<comm::DeviceOperationPtr> operations, WorkTensors tensors);
  /// Lets go of those that were kept and that the device is done with.
  void let_go_of_done();
  /// Calls `task` on the completion thread once all of `operations` are done, whatever their outcome. Polls for up to
  /// `poll_time` for each of them first. @returns false if all are done by then: `task` is the caller's to run.
  /// @throws SystemError if there can be no such thread; nothing has changed then.
  [[nodiscard]] bool when_done(std::vector<comm::OperationPtr> const& operations, std::function<void()> task,
                               std::chrono::microseconds poll_time);

  /// What the group did last, as JSON.
  [[nodiscard]] std::string flight_text() const;
  /// For the error of an operation that has failed: where the group's flight records are, which are written now if
  /// they were not. Empty if that was not asked for.
  [[nodiscard]] std::string failure_note() const;

  // LivePart: at the program's end the group is left, which ends all pending operations, whoever holds their works.
  [[nodiscard]] Order order() const override { return Order::kGroup; }
  std::string deliver(Deadline deadline) override;
  void leave() override;
  [[nodiscard]] bool end(Deadline deadline) override;

 private:
  struct Kept {
    std::vector<comm::DeviceOperationPtr> operations;
    WorkTensors tensors;
  };

  /// Whether peers that live may still write to its tensors: then they stay for ever.
  static bool is_lost(Kept const& kept);
  static void abandon(WorkTensors tensors);

  std::unique_ptr<comm::Group> group_;
  std::size_t device_slot_bytes_;
  mutable std::mutex device_mutex_;  ///< Guards the next two; of the group's locks it comes first.
  std::unique_ptr<comm::DeviceGroup> device_group_;
  std::vector<Kept> kept_;
  std::shared_ptr<CompletionThread> completions_;
  std::shared_ptr<FlightDump> flight_dump_;
  pid_t owner_;
};

/// Fails the group with `reason`, unless nobody holds it any more.
void abort_if_alive(std::weak_ptr<GroupHandle> const& handle, std::string const& reason);

}  // namespace headway::c10d_backend
