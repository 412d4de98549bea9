// SPDX-License-Identifier: Apache-2.0

// Products of warpgroups (wgmma, sm_90) in the emulator: D (64 x N) += A (64 x 16) B (16 x N). B lies in shared
// memory, A there or in registers.
//
// Each warp computes its 16 rows for itself: the four warps of a warpgroup need not meet, since all of them name the
// same operands. Shared memory is read when the product completes, which with AsyncTiming::kLate is in
// warpgroup_wait(). So a kernel that overwrites an operand before that computes with the wrong bytes here, as it may
// on a device.
//
// An operand is addressed by its descriptor: start, distance of panels (which are as wide as the swizzle), distance
// of groups of 8 rows, and swizzle. Example, with a swizzle of 128 bytes: element (row 9, column 5) has the address
// start + 1 group + 1 * 128 + 5 * 2 bytes, whose bits 4 to 6 are then xored with bits 7 to 9.

#pragma once

#include "barrier_emulation.hpp"
#include "mma_emulation.hpp"

#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

namespace headway::device_emulator {

/// Arguments of one thread in a product of its warpgroup.
struct WgmmaArguments {
  float* d = nullptr;                          ///< (num_acc) accumulators of this thread.
  int num_acc = 0;                             ///< N / 2.
  std::uint64_t a = 0;                         ///< Descriptor of A.
  std::uint32_t const* a_registers = nullptr;  ///< A in registers, instead of `a`.
  std::uint64_t b = 0;                         ///< Descriptor of B.
  bool is_a_transposed = false, is_b_transposed = false;
  bool accumulate = false;  ///< D += A B; else D = A B.
  float (*to_float)(std::uint16_t) = nullptr;
};

/// An operand in shared memory, described by the fields of its descriptor.
class Operand {
 public:
  Operand(Block& block, std::uint64_t descriptor, bool is_transposed)
      : block_(block),
        start_(static_cast<std::uint32_t>(descriptor & 0x3fff) << 4),
        panel_bytes_(static_cast<std::uint32_t>(descriptor >> 16 & 0x3fff) << 4),
        group_bytes_(static_cast<std::uint32_t>(descriptor >> 32 & 0x3fff) << 4),
        row_bytes_(descriptor >> 62 == 1   ? 128
                   : descriptor >> 62 == 2 ? 64
                                           : 32),
        is_transposed_(is_transposed) {
    if (descriptor >> 62 == 0) throw KernelError("operands without swizzle are not emulated");
  }

  /// Element (i, k). The product sums over k.
  [[nodiscard]] std::uint16_t at(std::uint32_t i, std::uint32_t k) const {
    std::uint32_t const row = is_transposed_ ? k : i, column = is_transposed_ ? i : k;
    std::uint32_t const per_row = row_bytes_ / 2;
    if (!is_transposed_ && column >= per_row) throw KernelError("an operand is wider than its swizzle");
    std::uint32_t const address =
        start_ + column / per_row * panel_bytes_ + row / 8 * group_bytes_ + row % 8 * row_bytes_ + column % per_row * 2;
    std::uint32_t const swizzled = address ^ ((address >> 7 & (row_bytes_ / 16 - 1)) << 4);
    if (swizzled + 2 > block_.options().shared_bytes) throw KernelError("an operand is outside of shared memory");
    std::uint16_t bits = 0;
    std::memcpy(&bits, block_.shared() + swizzled, 2);
    return bits;
  }

 private:
  Block& block_;
  std::uint32_t start_, panel_bytes_, group_bytes_, row_bytes_;
  bool is_transposed_;
};

/// Computes the 16 rows of one warp among the 64 rows of a product.
inline void wgmma_of_warp(Block& block, unsigned warp, std::array<WgmmaArguments, 32> const& lanes) {
  WgmmaArguments const& all = lanes[0];
  auto const num_columns = static_cast<unsigned>(all.num_acc) * 2;
  float a[16][16];
  std::vector<std::array<float, 16>> b(num_columns);
  for (unsigned k = 0; k < 16; ++k) {
    Operand const from(block, all.b, all.is_b_transposed);
    for (unsigned n = 0; n < num_columns; ++n) b[n][k] = all.to_float(from.at(n, k));
  }
  for (unsigned row = 0; row < 16 && all.a_registers == nullptr; ++row) {
    Operand const from(block, all.a, all.is_a_transposed);
    for (unsigned k = 0; k < 16; ++k) a[row][k] = all.to_float(from.at(warp % 4 * 16 + row, k));
  }
  for (unsigned lane = 0; lane < 32 && all.a_registers != nullptr; ++lane) {
    for (unsigned i = 0; i < 8; ++i) {
      unsigned const row = lane / 4 + 8 * (i / 2 % 2), k = lane % 4 * 2 + 8 * (i / 4) + i % 2;
      a[row][k] = all.to_float(half_of(lanes[lane].a_registers[i / 2], i % 2));
    }
  }
  for (unsigned lane = 0; lane < 32; ++lane) {
    for (unsigned i = 0; i < num_columns / 2; ++i) {
      auto const& a_row = a[lane / 4 + 8 * (i / 2 % 2)];
      auto const& b_column = b[i / 4 * 8 + lane % 4 * 2 + i % 2];
      float& d = lanes[lane].d[i];
      float sum = all.accumulate ? d : 0;
      for (unsigned k = 0; k < 16; ++k) sum += a_row[k] * b_column[k];
      d = sum;
    }
  }
}

/// Starts a product. @throws KernelError if lanes of a warp name different operands.
inline void wgmma(WgmmaArguments mine) {
  this_thread().block->meet(0xffffffffu, "wgmma", &mine, [](void* const* arguments) {
    Block& block = *this_thread().block;
    unsigned const warp = this_thread().linear_index / 32;
    std::array<WgmmaArguments, 32> lanes;
    for (unsigned i = 0; i < 32; ++i) {
      lanes[i] = *static_cast<WgmmaArguments*>(arguments[i]);
      if (lanes[i].a != lanes[0].a || lanes[i].b != lanes[0].b || lanes[i].accumulate != lanes[0].accumulate) {
        throw KernelError("lanes of a warp name different operands of one product");
      }
    }
    auto product = [&block, warp, lanes] { wgmma_of_warp(block, warp, lanes); };
    if (block.is_late()) {
      block.products_of(warp).open.emplace_back(product);
    } else {
      product();
    }
  });
}

/// Closes the group of products that this warp has started.
inline void warpgroup_commit() {
  this_thread().block->meet(0xffffffffu, "warpgroup_commit", nullptr, [](void* const*) {
    this_thread().block->products_of(this_thread().linear_index / 32).commit();
  });
}

/// Completes groups of this warp, the oldest first, until `num_left` are left.
inline void warpgroup_wait(int num_left) {
  this_thread().block->meet(0xffffffffu, "warpgroup_wait", &num_left, [](void* const* arguments) {
    auto const left = static_cast<std::size_t>(*static_cast<int*>(arguments[0]));
    this_thread().block->products_of(this_thread().linear_index / 32).finish(left);
  });
}

}  // namespace headway::device_emulator
