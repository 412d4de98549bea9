// SPDX-License-Identifier: Apache-2.0
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
  /// Sets the buffers of the following calls, one set per call in flight. They must stay in place until the next
  /// use(). Not timed.
  virtual void use(std::span<CallBuffers> sets) = 0;
  /// Starts a call on sets[set]. A system without pending calls may complete it here.
  virtual void start(std::size_t set) = 0;
  /// Blocks until the oldest started call has finished. @throws std::runtime_error if it failed.
  virtual void finish_oldest() = 0;
  /// Bytes that the library reserves for the puts of peers; 0 if the system does not report them.
  [[nodiscard]] virtual std::uint64_t reserved_bytes() = 0;
};

}  // namespace headway::benchmarks
