// SPDX-License-Identifier: Apache-2.0

// mbarriers of sm_90 in the emulator: a word in shared memory that counts arrivals of threads and bytes of copies.
// PTX leaves open how the hardware divides the word.
//
// Example: a stage of a ring, filled by one thread with 4,096 bytes. init(1) makes pending 1 and bytes 0. The thread
// arrives and announces 4,096 bytes: pending is 0, bytes 4,096, and the phase goes on. The copy ends and takes 4,096
// off. Both are 0 now, so the phase flips from 0 to 1 and pending is 1 again: a wait for parity 0 returns.
//
// Bytes may arrive before they are announced, since a copy may be faster than the thread that starts it. Then `bytes`
// is negative for a moment.

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
  std::uint64_t count : 13, pending : 13;  ///< Arrivals of a phase, and those that it still lacks.
  std::int64_t bytes : 37;                 ///< Announced bytes less arrived ones; negative if they arrive first.

  void end_phase_if_complete() {
    if (pending > 0 || bytes != 0) return;
    phase ^= 1;
    pending = count;
  }
};
static_assert(sizeof(BarrierState) == 8);

/// The state of a barrier, which lives in the word itself. @throws KernelError if the word is not in shared memory.
inline BarrierState& state_of(std::uint64_t* barrier) {
  static_cast<void>(shared_address(barrier));
  return *reinterpret_cast<BarrierState*>(barrier);
}

/// Makes a barrier whose phases take `count` arrivals each.
inline void mbarrier_init(std::uint64_t* barrier, std::uint32_t count) {
  state_of(barrier) = {.phase = 0, .count = count, .pending = count, .bytes = 0};
}

/// Announces `num_bytes` bytes without an arrival.
inline void expect_tx(std::uint64_t* barrier, std::uint32_t num_bytes) { state_of(barrier).bytes += num_bytes; }

/// Announces `num_bytes` bytes, which may be 0, and arrives.
inline void arrive(std::uint64_t* barrier, std::uint32_t num_bytes) {
  BarrierState& state = state_of(barrier);
  if (state.pending == 0) throw KernelError("more threads arrive at a barrier than it counts");
  state.bytes += num_bytes;
  --state.pending;
  state.end_phase_if_complete();
}

/// Returns once the phase of this parity is over. A barrier whose first phase (parity 0) runs counts phase 1 as over,
/// as the hardware does, so a producer may wait for a stage that nobody has used.
inline void wait(std::uint64_t* barrier, std::uint32_t parity) {
  BarrierState const& state = state_of(barrier);
  wait_until("a wait for a barrier", [&state, parity] { return state.phase != parity; });
}

}  // namespace headway::device_emulator
