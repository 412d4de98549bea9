#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace headway::c10d_backend {

/// Something with a thread that may free what Python owns: it must end before the interpreter does.
///
/// A thread that reaches for the interpreter lock after that is unwound by CPython (before 3.14), through frames that
/// are noexcept: the process would abort.
class LivePart {
 public:
  using Deadline = std::chrono::steady_clock::time_point;
  /// Parts end in this order, since a part makes work for those behind it.
  enum class Order { kGroup, kReducer, kCallbacks };

  LivePart() = default;
  LivePart(LivePart const&) = delete;
  LivePart& operator=(LivePart const&) = delete;
  virtual ~LivePart() = default;

  [[nodiscard]] virtual Order order() const = 0;
  /// Delivers what was started and may be delivered. @returns what was not by `deadline`; empty if all was.
  virtual std::string deliver(Deadline /*deadline*/) { return {}; }
  /// Begins to end; does not block.
  virtual void leave() {}
  /// @returns whether its threads have ended by `deadline`, or will touch nothing that Python owns.
  [[nodiscard]] virtual bool end(Deadline deadline) = 0;
};

/// Notes that `part` is to end with the program. Of a forked child's parts only those that it made itself end.
/// @throws comm::UsageError once the program ends.
void add_live_part(std::shared_ptr<LivePart> const& part);

/// Ends all parts, for an exit handler of Python that has let go of the interpreter lock.
/// @param delivery_time for messages that peers have not taken yet; all groups together.
/// @param end_time for threads. A thread that has not ended then stays; if CPython ends it later, it stops for good
/// where the process would have aborted.
void end_live_parts(std::chrono::milliseconds delivery_time, std::chrono::milliseconds end_time);

/// Never destroys `object`.
void keep_forever(std::shared_ptr<void> object);

}  // namespace headway::c10d_backend
