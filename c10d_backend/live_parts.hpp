#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace headway::c10d_backend {

/// An object with a thread that may free what Python owns. It must end before the interpreter does.
///
/// After that, CPython (before 3.14) unwinds a thread that takes the interpreter lock. If it unwinds through a noexcept
/// frame, the process aborts.
class LivePart {
 public:
  using Deadline = std::chrono::steady_clock::time_point;
  /// Parts end in this order, because a part creates work for those behind it.
  enum class Order { kGroup, kReducer, kCallbacks };

  LivePart() = default;
  LivePart(LivePart const&) = delete;
  LivePart& operator=(LivePart const&) = delete;
  virtual ~LivePart() = default;

  [[nodiscard]] virtual Order order() const = 0;
  /// Delivers started messages. @returns a description of those not delivered by `deadline`; empty if all were.
  virtual std::string deliver(Deadline /*deadline*/) { return {}; }
  /// Starts to end, without blocking.
  virtual void leave() {}
  /// @returns whether its threads have ended by `deadline`, or will touch nothing that Python owns.
  [[nodiscard]] virtual bool end(Deadline deadline) = 0;
};

/// Registers `part` to end with the program. A forked child ends only the parts that it registered itself.
/// @throws comm::UsageError once the program is ending.
void add_live_part(std::shared_ptr<LivePart> const& part);

/// Ends all parts. For an exit handler of Python that has released the interpreter lock.
/// @param delivery_time Limit for messages that peers have not taken yet, for all groups together.
/// @param end_time Limit for threads. A thread that has not ended then stays. If CPython unwinds it later, it stops for
/// good instead of aborting the process.
void end_live_parts(std::chrono::milliseconds delivery_time, std::chrono::milliseconds end_time);

/// Keeps `object` until the process ends, without destroying it.
void keep_forever(std::shared_ptr<void> object);

}  // namespace headway::c10d_backend
