// SPDX-License-Identifier: Apache-2.0

// Ownership of a group by its backend and its unfinished works.
//
// Three things make the end of a group difficult. A work may outlive the backend, so the last owner ends the group. A
// forked child owns copies of all objects but none of their threads, so it leaks them. And peers on this host may
// still write into CUDA tensors after a failure, so such tensors are never given back to the allocator.
//
// Example: a DataLoader worker is forked while an all-to-all is pending. When it exits, its copy of the handle sees
// another process id and frees nothing. The parent's exchange goes on, and its peers notice nothing.

#include "group/group_handle.hpp"

#include "runtime/interpreter.hpp"

#include <headway/base/log.hpp>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <utility>

namespace headway::c10d_backend {

namespace {

/// Starts to run the abort hooks on the completion thread, unless they have begun or there are none.
void start_abort_hooks(std::shared_ptr<Hooks> const& hooks, CompletionThread& completions) {
  if (!hooks->begin_abort()) return;
  try {
    completions.start();
  } catch (comm::SystemError const& error) {
    hooks->end_abort();
    return base::log(base::LogLevel::kWarning, "group", /*rank=*/-1,
                     std::string("abort hooks do not run: ") + error.what());
  }
  completions.submit([hooks] { hooks->run_abort_hooks(); });
}

}  // namespace

GroupHandle::GroupHandle(std::unique_ptr<comm::Group> group, std::shared_ptr<FlightDump> flight_dump,
                         std::size_t device_slot_bytes)
    : group_(std::move(group)),
      device_slot_bytes_(device_slot_bytes),
      completions_(std::make_shared<CompletionThread>()),
      flight_dump_(std::move(flight_dump)),
      owner_(getpid()) {
  // Runs even if no thread of this rank waits: only this rank's records show which operations it did not start. It runs
  // under a lock of the group, so hooks get a thread of their own.
  group_->admin().on_failure([dump = flight_dump_, hooks = hooks_, completions = completions_](
                                 comm::Status const& failure, std::vector<comm::FlightRecord> const& records) {
    if (dump->writes()) dump->write_once(failure, records);
    start_abort_hooks(hooks, *completions);
  });
}

GroupHandle::~GroupHandle() {
  if (is_inherited()) {
    // Threads that do not exist in this process may have held locks in these objects, so they are leaked.
    static_cast<void>(group_.release());
    static_cast<void>(device_group_.release());
    new std::vector<PendingRelease>(std::move(pending_releases_));
    new std::shared_ptr<CompletionThread>(std::move(completions_));
    return;
  }
  ReleasedGil const released;  // Leaving a group waits for the progress thread and for its device.
  device_group_.reset();
  for (auto& kept : pending_releases_) {
    if (is_lost(kept)) leak(std::move(kept.tensors));
  }
  group_.reset();
}

bool GroupHandle::is_lost(PendingRelease const& kept) {
  return std::ranges::any_of(kept.operations, [](auto const& operation) {
    return operation->is_written_by_peers() && !operation->status().ok();
  });
}

void GroupHandle::leak(WorkTensors tensors) { static_cast<void>(new WorkTensors(std::move(tensors))); }

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
  release_completed();
  std::lock_guard const lock(device_mutex_);
  pending_releases_.push_back({std::move(operations), std::move(tensors)});
}

void GroupHandle::release_completed() {
  std::vector<PendingRelease> done;  // Freed after the lock.
  std::lock_guard const lock(device_mutex_);
  auto const is_pending = [](PendingRelease const& kept) {
    return !std::ranges::all_of(kept.operations, [](auto const& operation) { return operation->done(); });
  };
  auto const first_done = std::partition(pending_releases_.begin(), pending_releases_.end(), is_pending);
  for (auto kept = first_done; kept != pending_releases_.end(); ++kept) {
    if (is_lost(*kept)) {
      leak(std::move(kept->tensors));
    } else {
      done.push_back(std::move(*kept));
    }
  }
  pending_releases_.erase(first_done, pending_releases_.end());
}

std::string GroupHandle::flight_text() const {
  return flight_dump_->text(group().monitor().health(), group().monitor().flight_records());
}

void GroupHandle::abort(std::string const& reason, std::chrono::milliseconds hook_time) {
  auto& admin = group().admin();
  ReleasedGil const released;
  start_abort_hooks(hooks_, *completions_);
  hooks_->wait_for_abort_hooks(hook_time);
  admin.abort(reason);
}

std::string GroupHandle::failure_note() const {
  {
    ReleasedGil const released;
    hooks_->wait_for_abort_hooks(kHookTime);  // The caller is about to throw, and its program may end then.
  }
  if (!flight_dump_->writes()) return {};
  auto const& path = flight_dump_->write_once(group().monitor().health(), group().monitor().flight_records());
  return path.empty() ? "" : "; flight records: " + path;
}

bool GroupHandle::when_done(std::vector<comm::OperationPtr> const& operations, std::function<void()> task,
                            std::chrono::microseconds poll_time) {
  completions_->start();
  // The count starts one too high. The extra one is this call's, so no task is submitted before all callbacks are
  // registered. If it is the last to count down, all operations are done and the caller runs the task.
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
  auto const status = group_->admin().deliver(std::max(left, std::chrono::milliseconds(0)));
  return status.ok() ? std::string() : flight_dump_->group_name() + ": " + std::string(status.message());
}

void GroupHandle::leave() {
  hooks_->wait_for_abort_hooks(kLongHookTime);
  hooks_->clear();  // Python may own hooks, and its end is near.
  // Streams of a device may still work for peers, and no thread tracks them. Such a group is left by its destructor,
  // which waits for the device.
  if (existing_device_group() != nullptr) return;
  group_->admin().leave("the group was left as the program ended");
}

// There is nothing to wait for: the completion thread, the only one here that uses Python, is an ExitHook of its own.
bool GroupHandle::end(Deadline /*deadline*/) { return true; }

void abort_if_alive(std::weak_ptr<GroupHandle> const& handle, std::string const& reason) {
  if (auto const alive = handle.lock()) alive->abort(reason);
}

}  // namespace headway::c10d_backend
