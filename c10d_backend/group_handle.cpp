#include "group_handle.hpp"

#include "released_gil.hpp"

#include <unistd.h>

#include <atomic>
#include <utility>

namespace headway::c10d_backend {

GroupHandle::GroupHandle(std::unique_ptr<comm::Group> group, std::shared_ptr<FlightDump> flight_dump)
    : group_(std::move(group)),
      completions_(std::make_shared<CompletionThread>()),
      flight_dump_(std::move(flight_dump)),
      owner_(getpid()) {
  if (!flight_dump_->writes()) return;
  // Also where no thread of this rank waits: what a rank did not start is told by its own records.
  group_->on_failure(
      [dump = flight_dump_](comm::Status const& failure, std::vector<comm::FlightRecord> const& records) {
        dump->write_once(failure, records);
      });
}

GroupHandle::~GroupHandle() {
  if (is_inherited()) {
    // Locks in here may have been held by threads that this process does not have: leave everything as it is.
    static_cast<void>(group_.release());
    new std::shared_ptr<CompletionThread>(std::move(completions_));
    return;
  }
  ReleasedGil const released;  // Leaving a group waits for the progress thread.
  group_.reset();
}

bool GroupHandle::is_inherited() const { return getpid() != owner_; }

comm::Group& GroupHandle::group() const {
  comm::expects(!is_inherited(), "this group belongs to the parent process: make a new one after fork()");
  return *group_;
}

std::string GroupHandle::flight_text() const { return flight_dump_->text(group().health(), group().flight_records()); }

std::string GroupHandle::failure_note() const {
  if (!flight_dump_->writes()) return {};
  auto const& path = flight_dump_->write_once(group().health(), group().flight_records());
  return path.empty() ? "" : "; flight records: " + path;
}

void GroupHandle::when_done(std::vector<comm::OperationPtr> const& operations, std::function<void()> task) {
  auto const remaining = std::make_shared<std::atomic<std::size_t>>(operations.size());
  auto const shared_task = std::make_shared<std::function<void()>>(std::move(task));
  for (auto const& operation : operations) {
    group().on_done(*operation, [completions = completions_, remaining, shared_task] {
      if (--*remaining == 0) completions->submit(std::move(*shared_task));
    });
  }
}

void abort_if_alive(std::weak_ptr<GroupHandle> const& handle, std::string const& reason) {
  if (auto const alive = handle.lock()) alive->group().abort(reason);
}

}  // namespace headway::c10d_backend
