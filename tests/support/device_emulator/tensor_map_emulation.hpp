// SPDX-License-Identifier: Apache-2.0

// TMA in the emulator copies boxes of a tensor into shared memory, and adds shared memory to global memory.
//
// Example: a tensor of 10 rows of 64 numbers, a box of 8 rows, at row 6. Rows 6 to 9 are copied, and the four rows of
// the box that lie outside of the tensor become 0. All 8 * 64 * 2 = 1,024 bytes count at the barrier, those outside
// too. Element (row 1, column 8) of the box has the linear address 128 + 16 in the tile. Bits 7 to 9 hold 1, so its
// unit 1 becomes 1 xor 1 = 0, and it lies at 128.
//
// Invariant: a copy takes its bytes off the barrier only after all of them are in place.

#pragma once

#include "barrier_emulation.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace headway::device_emulator {

/// Arguments of cuTensorMapEncodeTiled for a tensor of rank 4 of 16-bit numbers with contiguous columns.
struct TensorMap {
  std::byte const* data = nullptr;
  std::array<std::int64_t, 4> size{}, stride_bytes{};  ///< Elements and distance of each dimension, columns first.
  std::array<std::int32_t, 4> box{};                   ///< Elements of a copied box, in each dimension.
};

/// Rows of 128 bytes: XOR of the 16-byte unit (8 per row) with address bits 7 to 9. Rows of 64 bytes: 4 units, bits 7
/// and 8.
inline std::uint32_t swizzle(std::uint32_t address, std::uint32_t row_bytes) {
  return address ^ ((address >> 7 & (row_bytes / 16 - 1)) << 4);
}

/// Copies the box that begins at element `at`, columns first, into the tile at `start`. Elements outside become 0.
inline void copy_box(Block& block, std::uint32_t start, TensorMap const& map, std::array<std::int32_t, 4> at) {
  auto const row_bytes = static_cast<std::uint32_t>(map.box[0]) * 2;
  std::uint32_t address = start;
  std::array<std::int64_t, 4> i{};
  for (i[3] = at[3]; i[3] < at[3] + map.box[3]; ++i[3]) {
    for (i[2] = at[2]; i[2] < at[2] + map.box[2]; ++i[2]) {
      for (i[1] = at[1]; i[1] < at[1] + map.box[1]; ++i[1]) {
        for (i[0] = at[0]; i[0] < at[0] + map.box[0]; ++i[0], address += 2) {
          bool is_inside = true;
          std::int64_t offset = 0;
          for (std::size_t d = 0; d < 4; ++d) {
            is_inside = is_inside && i[d] >= 0 && i[d] < map.size[d];
            offset += i[d] * map.stride_bytes[d];
          }
          std::byte* const to = block.shared() + swizzle(address, row_bytes);
          std::memset(to, 0, 2);
          if (is_inside) std::memcpy(to, map.data + offset, 2);
        }
      }
    }
  }
}

/// Starts a copy; `barrier` counts its bytes when it is done. @throws KernelError if the tile is not aligned.
inline void tma_load(void* shared, TensorMap const* map, std::uint64_t* barrier, std::array<std::int32_t, 4> at) {
  std::uint32_t const start = shared_address(shared);
  if (start % 1024 != 0) throw KernelError("a tile in shared memory is not 1024-byte aligned");
  std::int32_t const num_bytes = 2 * map->box[0] * map->box[1] * map->box[2] * map->box[3];
  BarrierState& state = state_of(barrier);
  Block& block = *this_thread().block;
  // Copies the map. On a device it is a kernel parameter that outlives the threads; here it is not.
  block.do_sometime([&block, &state, start, map = *map, at, num_bytes] {
    copy_box(block, start, map, at);
    state.bytes -= num_bytes;
    state.end_phase_if_complete();
  });
}

/// Adds shared memory to global memory. The addition may read shared memory until a bulk wait of this thread has
/// returned.
inline void tma_reduce_add(float* global, void const* shared, std::uint32_t num_bytes) {
  if ((reinterpret_cast<std::uintptr_t>(global) | shared_address(shared) | num_bytes) % 16 != 0) {
    throw KernelError("a bulk addition is not of 16-byte units");
  }
  Thread& thread = this_thread();
  auto const* source = static_cast<float const*>(shared);
  auto add = [global, source, num_bytes] {
    for (std::uint32_t i = 0; i < num_bytes / 4; ++i) global[i] += source[i];
  };
  if (thread.block->is_late()) {
    thread.bulk_stores.open.emplace_back(add);
  } else {
    add();
    thread.bulk_stores.open.emplace_back([] {});
  }
}

}  // namespace headway::device_emulator
