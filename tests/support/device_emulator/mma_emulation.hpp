// SPDX-License-Identifier: Apache-2.0

// Warp-level matrix instructions on the host: mma.m16n8k16, ldmatrix and cp.async. The last lane to arrive computes
// for all 32, from their arguments, by the layouts that mma.cuh documents.

#pragma once

#include "grid.hpp"

#include <cstdint>
#include <cstring>

namespace headway::device_emulator {

/// One of two 16-bit numbers in a register: 0 is the lower half.
inline std::uint16_t half_of(std::uint32_t pair, unsigned which) {
  return static_cast<std::uint16_t>(pair >> (16 * which));
}

/// Arguments of one lane in a product. mma_m16n8k16 in mma.cuh describes which lane holds which elements.
struct MmaArguments {
  float* d;
  std::uint32_t const *a, *b;
  float (*to_float)(std::uint16_t);
};

/// Gathers A (16 x 16) and B (16 x 8) from the registers of all lanes, and adds A B to D (16 x 8). Lane 5 for example
/// is group g = 1 and thread t = 1: its first register of A holds A[1][2] and A[1][3], and its d[0] is D[1][2].
///
/// Sums run over k in ascending order. The hardware's order is not documented, so results may differ in the last bits.
inline void mma_of_warp(void* const* lanes) {
  float a[16][16], b[16][8];
  for (unsigned lane = 0; lane < 32; ++lane) {
    auto const& own = *static_cast<MmaArguments*>(lanes[lane]);
    unsigned const g = lane / 4, t = lane % 4;
    for (unsigned e = 0; e < 2; ++e) {
      for (unsigned i = 0; i < 4; ++i) a[g + 8 * (i % 2)][2 * t + 8 * (i / 2) + e] = own.to_float(half_of(own.a[i], e));
      for (unsigned i = 0; i < 2; ++i) b[2 * t + 8 * i + e][g] = own.to_float(half_of(own.b[i], e));
    }
  }
  for (unsigned lane = 0; lane < 32; ++lane) {
    auto const& own = *static_cast<MmaArguments*>(lanes[lane]);
    for (unsigned i = 0; i < 4; ++i) {
      float sum = own.d[i];
      for (unsigned k = 0; k < 16; ++k) sum += a[lane / 4 + 8 * (i / 2)][k] * b[k][lane % 4 * 2 + i % 2];
      own.d[i] = sum;
    }
  }
}

inline void mma_m16n8k16(float (&d)[4], std::uint32_t const (&a)[4], std::uint32_t const (&b)[2],
                         float (*to_float)(std::uint16_t)) {
  MmaArguments mine{d, a, b, to_float};
  this_thread().block->meet(0xffffffffu, "mma_m16n8k16", &mine, mma_of_warp);
}

/// Arguments of one lane in ldmatrix.
struct MatrixArguments {
  std::uint32_t* result;
  std::byte const* row;
  bool is_transposed;
};

/// Lanes 8 i to 8 i + 7 name the rows of matrix i, 16 bytes each. Lane 4 g + t gets elements (g, 2 t) and (g, 2 t +
/// 1) of each matrix, or (2 t, g) and (2 t + 1, g) transposed.
inline void ldmatrix_of_warp(void* const* lanes) {
  std::uint16_t elements[4][8][8];
  for (unsigned lane = 0; lane < 32; ++lane) {
    std::memcpy(elements[lane / 8][lane % 8], static_cast<MatrixArguments*>(lanes[lane])->row, 16);
  }
  for (unsigned lane = 0; lane < 32; ++lane) {
    auto const& own = *static_cast<MatrixArguments*>(lanes[lane]);
    unsigned const g = lane / 4, t = lane % 4;
    for (unsigned i = 0; i < 4; ++i) {
      auto const& m = elements[i];
      std::uint32_t const low = own.is_transposed ? m[2 * t][g] : m[g][2 * t];
      std::uint32_t const high = own.is_transposed ? m[2 * t + 1][g] : m[g][2 * t + 1];
      own.result[i] = low | high << 16;
    }
  }
}

inline void ldmatrix_x4(std::uint32_t (&m)[4], void const* row, bool is_transposed) {
  if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0) throw KernelError("a row of a matrix is not 16-byte aligned");
  MatrixArguments mine{m, static_cast<std::byte const*>(row), is_transposed};
  this_thread().block->meet(0xffffffffu, "ldmatrix_x4", &mine, ldmatrix_of_warp);
}

/// Copies the first `num_bytes` of 16 bytes and sets the rest to 0. @throws KernelError if an address is not aligned.
inline void cp_async(void* shared, void const* global, std::uint32_t num_bytes) {
  if ((reinterpret_cast<std::uintptr_t>(shared) | reinterpret_cast<std::uintptr_t>(global)) % 16 != 0) {
    throw KernelError("an asynchronous copy is not 16-byte aligned");
  }
  auto copy = [shared, global, num_bytes] {
    std::memset(shared, 0, 16);
    std::memcpy(shared, global, num_bytes);
  };
  Thread& thread = this_thread();
  if (thread.block->is_late()) {
    thread.copies.open.emplace_back(copy);
  } else {
    copy();
  }
}

}  // namespace headway::device_emulator
