#pragma once

#include "call_buffers.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace headway::benchmarks {

/// One rank's end of the all-to-all of a system under test. Everything around it is the same for all systems.
class Exchange {
 public:
  virtual ~Exchange() = default;
  /// Memory for the calls that follow; stays where it is until the next use(). Not timed.
  virtual void use(std::span<CallBuffers> sets) = 0;
  /// Starts a call on sets[set]. A system without pending calls may finish it here.
  virtual void start(std::size_t set) = 0;
  /// Blocks until the oldest call that was started is finished. @throws std::runtime_error if it failed.
  virtual void finish_oldest() = 0;
  /// Library-owned memory that peers write to, as reserved; 0 where the system does not say.
  [[nodiscard]] virtual std::uint64_t reserved_bytes() = 0;
};

}  // namespace headway::benchmarks
