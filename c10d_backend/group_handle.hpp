#pragma once

#include "completion_thread.hpp"
#include "flight_dump.hpp"

#include <headway/comm/group.hpp>

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace headway::c10d_backend {

/// Owns a Group, and the thread for its completions, on behalf of a backend and of its unfinished works.
///
/// A forked child (a DataLoader worker) inherits the object but not the connection: there the group is neither used nor
/// destroyed, so that the parent's peers notice nothing.
class GroupHandle final {
 public:
  GroupHandle(std::unique_ptr<comm::Group> group, std::shared_ptr<FlightDump> flight_dump);
  GroupHandle(GroupHandle const&) = delete;
  GroupHandle& operator=(GroupHandle const&) = delete;
  ~GroupHandle();

  /// Whether this process got the object by fork().
  [[nodiscard]] bool is_inherited() const;
  /// @throws UsageError in a forked child.
  [[nodiscard]] comm::Group& group() const;
  /// Calls `task` on the completion thread once all of `operations` are done, whatever their outcome.
  void when_done(std::vector<comm::OperationPtr> const& operations, std::function<void()> task);

  /// What the group did last, as JSON.
  [[nodiscard]] std::string flight_text() const;
  /// For the error of an operation that has failed: where the group's flight records are, which are written now if
  /// they were not. Empty if that was not asked for.
  [[nodiscard]] std::string failure_note() const;

 private:
  std::unique_ptr<comm::Group> group_;
  std::shared_ptr<CompletionThread> completions_;
  std::shared_ptr<FlightDump> flight_dump_;
  pid_t owner_;
};

/// Fails the group with `reason`, unless nobody holds it any more.
void abort_if_alive(std::weak_ptr<GroupHandle> const& handle, std::string const& reason);

}  // namespace headway::c10d_backend
