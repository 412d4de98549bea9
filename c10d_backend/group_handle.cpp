#include "group_handle.hpp"

#include "released_gil.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <utility>

namespace headway::c10d_backend {

GroupHandle::GroupHandle(std::unique_ptr<comm::Group> group, std::shared_ptr<FlightDump> flight_dump,
                         std::size_t device_slot_bytes)
    : group_(std::move(group)),
      device_slot_bytes_(device_slot_bytes),
      completions_(std::make_shared<CompletionThread>()),
      flight_dump_(std::move(flight_dump)),
      owner_(getpid()) {
  if (!flight_dump_->writes()) return;
  // Runs even if no thread of this rank waits: only this rank's records show which operations it did not start.
  group_->on_failure(
      [dump = flight_dump_](comm::Status const& failure, std::vector<comm::FlightRecord> const& records) {
        dump->write_once(failure, records);
      });
}

GroupHandle::~GroupHandle() {
  if (is_inherited()) {
    // Threads that do not exist in this process may have held locks in these objects, so they are leaked.
    static_cast<void>(group_.release());
    static_cast<void>(device_group_.release());
    new std::vector<Kept>(std::move(kept_));
    new std::shared_ptr<CompletionThread>(std::move(completions_));
    return;
  }
  ReleasedGil const released;  // Leaving a group waits for the progress thread and for its device.
  device_group_.reset();
  for (auto& kept : kept_) {
    if (is_lost(kept)) abandon(std::move(kept.tensors));
  }
  group_.reset();
}

bool GroupHandle::is_lost(Kept const& kept) {
  return std::ranges::any_of(kept.operations, [](auto const& operation) {
    return operation->is_written_by_peers() && !operation->status().ok();
  });
}

void GroupHandle::abandon(WorkTensors tensors) { static_cast<void>(new WorkTensors(std::move(tensors))); }

bool GroupHandle::is_inherited() const { return getpid() != owner_; }

comm::Group& GroupHandle::group() const {
  comm::expects(!is_inherited(), "this group belongs to the parent process: make a new one after fork()");
  return *group_;
}

comm::DeviceGroup& GroupHandle::device_group(int ordinal) {
  auto& group = this->group();
  std::lock_guard const lock(device_mutex_);
  if (device_group_ == nullptr) {
    device_group_ = comm::DeviceGroup::make(group, {.ordinal = ordinal, .slot_bytes = device_slot_bytes_});
  }
  comm::expects(device_group_->ordinal() == ordinal,
                "this rank of the group exchanges tensors of cuda:" + std::to_string(device_group_->ordinal()) +
                    ", and these are on cuda:" + std::to_string(ordinal) + ": a rank has one device");
  return *device_group_;
}

comm::DeviceGroup* GroupHandle::existing_device_group() const {
  std::lock_guard const lock(device_mutex_);
  return device_group_.get();
}

void GroupHandle::keep_until_done(std::vector<comm::DeviceOperationPtr> operations, WorkTensors tensors) {
  let_go_of_done();
  std::lock_guard const lock(device_mutex_);
  kept_.push_back({std::move(operations), std::move(tensors)});
}

void GroupHandle::let_go_of_done() {
  std::vector<Kept> done;  // Freed after the lock.
  std::lock_guard const lock(device_mutex_);
  auto const is_pending = [](Kept const& kept) {
    return !std::ranges::all_of(kept.operations, [](auto const& operation) { return operation->done(); });
  };
  auto const first_done = std::partition(kept_.begin(), kept_.end(), is_pending);
  for (auto kept = first_done; kept != kept_.end(); ++kept) {
    if (is_lost(*kept)) {
      abandon(std::move(kept->tensors));
    } else {
      done.push_back(std::move(*kept));
    }
  }
  kept_.erase(first_done, kept_.end());
}

std::string GroupHandle::flight_text() const { return flight_dump_->text(group().health(), group().flight_records()); }

std::string GroupHandle::failure_note() const {
  if (!flight_dump_->writes()) return {};
  auto const& path = flight_dump_->write_once(group().health(), group().flight_records());
  return path.empty() ? "" : "; flight records: " + path;
}

bool GroupHandle::when_done(std::vector<comm::OperationPtr> const& operations, std::function<void()> task,
                            std::chrono::microseconds poll_time) {
  completions_->start();
  // The extra count is this call's, so no task is submitted before all callbacks are registered.
  auto const remaining = std::make_shared<std::atomic<std::size_t>>(operations.size() + 1);
  auto const shared_task = std::make_shared<std::function<void()>>(std::move(task));
  for (auto const& operation : operations) {
    group().on_done(
        *operation,
        [completions = completions_, remaining, shared_task] {
          if (--*remaining == 0) completions->submit(std::move(*shared_task));
        },
        poll_time);
  }
  return --*remaining != 0;
}

std::string GroupHandle::deliver(Deadline deadline) {
  auto const left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  auto const status = group_->deliver(std::max(left, std::chrono::milliseconds(0)));
  return status.ok() ? std::string() : flight_dump_->group_name() + ": " + std::string(status.message());
}

void GroupHandle::leave() {
  // Streams of a device may still work for peers, and no thread tracks them. Such a group is left by its destructor,
  // which waits for the device.
  if (existing_device_group() != nullptr) return;
  group_->leave("the group was left as the program ended");
}

bool GroupHandle::end(Deadline /*deadline*/) { return true; }

void abort_if_alive(std::weak_ptr<GroupHandle> const& handle, std::string const& reason) {
  if (auto const alive = handle.lock()) alive->group().abort(reason);
}

}  // namespace headway::c10d_backend
