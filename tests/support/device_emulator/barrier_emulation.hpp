#pragma once

#include "grid.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

namespace headway::device_emulator {

/// Offset of `pointer` in the block's shared memory. @throws KernelError if it is outside.
inline std::uint32_t shared_address(void const* pointer) {
  Block& block = *this_thread().block;
  auto const offset = static_cast<std::byte const*>(pointer) - block.shared();
  if (offset < 0 || static_cast<std::size_t>(offset) > block.options().shared_bytes) {
    throw KernelError("a pointer is not to the dynamic shared memory of the block");
  }
  return static_cast<std::uint32_t>(offset);
}

/// State of a barrier, in the 8 bytes of its word in shared memory.
struct BarrierState {
  std::uint64_t phase : 1;
  std::uint64_t count : 13, pending : 13;
  std::int64_t bytes : 37;  ///< Announced bytes less arrived ones; negative if they arrive first.

  void end_phase_if_complete() {
    if (pending > 0 || bytes != 0) return;
    phase ^= 1;
    pending = count;
  }
};
static_assert(sizeof(BarrierState) == 8);

inline BarrierState& state_of(std::uint64_t* barrier) {
  static_cast<void>(shared_address(barrier));
  return *reinterpret_cast<BarrierState*>(barrier);
}

inline void init_barrier(std::uint64_t* barrier, std::uint32_t count) {
  state_of(barrier) = {.phase = 0, .count = count, .pending = count, .bytes = 0};
}

inline void expect(std::uint64_t* barrier, std::uint32_t num_bytes) { state_of(barrier).bytes += num_bytes; }

inline void arrive(std::uint64_t* barrier, std::uint32_t num_bytes) {
  BarrierState& state = state_of(barrier);
  if (state.pending == 0) throw KernelError("more threads arrive at a barrier than it counts");
  state.bytes += num_bytes;
  --state.pending;
  state.end_phase_if_complete();
}

inline void wait(std::uint64_t* barrier, std::uint32_t parity) {
  BarrierState const& state = state_of(barrier);
  wait_until("a wait for a barrier", [&state, parity] { return state.phase != parity; });
}

}  // namespace headway::device_emulator
