// SPDX-License-Identifier: Apache-2.0

// Tensor-core products of a warpgroup (wgmma, sm_90a). They are asynchronous and read operands from shared memory;
// the first operand may be in registers.
//
// Rules that the compiler does not know, and that callers keep by fence_operand(), warpgroup_arrive() and
// warpgroup_wait(): registers of a running product must be neither read nor written, nor copied to other registers.
// The shared memory that descriptors name must have been written through the async proxy (TMA), or be followed by
// fence_async_proxy(). If ptxas sees a violation or a function call, it serialises all wgmma of the kernel.

#pragma once

#include "cuda/barrier.cuh"
#include "cuda/element.cuh"

// Tests compile kernels for an emulator on the CPU: see device.cuh.
#if defined(HEADWAY_DEVICE_EMULATOR)
#include "wgmma_emulation.hpp"
#else
#include "cuda/wgmma_registers.cuh"
#endif

#include <algorithm>
#include <type_traits>

namespace headway::kernels {

/// Index of an operand that is contiguous in memory: the summed one (K-major), or the other (MN-major).
enum class Major : std::uint8_t { kK, kMN };

/// Tile of 16-bit numbers in shared memory, in the swizzled layout that TMA writes and wgmma reads. The tile consists
/// of panels of `kPanelColumns` columns, one after the other. A panel stores its rows one after the other, `kRowBytes`
/// bytes each. wgmma reads groups of 8 rows. Tiles are aligned to 1024 bytes.
///
/// Example: 128 rows of 128 columns are two panels of 64 columns. A row of a panel has 128 bytes, that is 8 units of 16
/// bytes. Unit u of row r is stored at unit u ^ (r % 8), so that 8 rows of one column lie in different banks.
template <int kRows, int kColumns>
struct SwizzledTile {
  static constexpr int kPanelColumns = std::min(kColumns, 64);
  static constexpr int kRowBytes = kPanelColumns * 2;
  static constexpr int kPanelBytes = kRows * kRowBytes;
  static constexpr int kBytes = kRows * kColumns * 2;
  static_assert(kPanelColumns == 32 || kPanelColumns == 64);
  static_assert(kRows % 8 == 0 && kColumns % kPanelColumns == 0);

  /// Byte offset of the element (row, column), with the swizzle applied.
  [[nodiscard]] static __device__ __forceinline__ std::uint32_t offset_of(std::uint32_t row, std::uint32_t column) {
    std::uint32_t const linear = column / kPanelColumns * kPanelBytes + row * kRowBytes + column % kPanelColumns * 2;
    return linear ^ ((linear >> 7 & (kRowBytes / 16 - 1)) << 4);
  }

  /// wgmma descriptor of a K-major operand: its summed index is columns from `first_column` (a multiple of 16), its
  /// other index is rows from `first_row` (a multiple of 8).
  [[nodiscard]] static __device__ __forceinline__ std::uint64_t k_major(std::uint32_t address, std::uint32_t first_row,
                                                                        std::uint32_t first_column) {
    std::uint32_t const offset = first_column / kPanelColumns * kPanelBytes + first_column % kPanelColumns * 2;
    return descriptor(address + first_row * kRowBytes, offset, 1);
  }

  /// wgmma descriptor of an MN-major operand: its summed index is rows from `first_row` (a multiple of 16), its other
  /// index is columns from `first_column` (a multiple of 8). A product that starts inside a panel must end in it.
  [[nodiscard]] static __device__ __forceinline__ std::uint64_t mn_major(std::uint32_t address, std::uint32_t first_row,
                                                                         std::uint32_t first_column) {
    std::uint32_t const panel = first_column / kPanelColumns * kPanelBytes, within = first_column % kPanelColumns * 2;
    return descriptor(address + panel + within, first_row * kRowBytes, kPanelBytes / 16);
  }

 private:
  /// Encodes a descriptor; its fields count 16-byte units. Bits 0 to 13: address. From bit 16: distance between panels.
  /// From bit 32: distance between groups of 8 rows. Bits 62 and 63: swizzle, 1 for rows of 128 bytes, 2 for 64. If
  /// `offset` is a constant, a descriptor costs one addition to what all descriptors of a tile have in common.
  [[nodiscard]] static __device__ __forceinline__ std::uint64_t descriptor(std::uint32_t address, std::uint32_t offset,
                                                                           std::uint32_t panel_units) {
    constexpr std::uint32_t kGroupUnits = 8 * kRowBytes / 16;
    constexpr std::uint32_t kSwizzle = kRowBytes == 128 ? 1 : 2;
    std::uint32_t const low = (address >> 4) + ((offset >> 4) + (panel_units << 16));
    return std::uint64_t{kGroupUnits | kSwizzle << 30} << 32 | low;
  }
};

/// d (+)= a * b for a (64, 16), b (16, kColumns), d (64, kColumns), by the four warps of a warpgroup. Thread 32 w + 4 g
/// + t holds, of each 8 columns, columns 2t and 2t + 1 of row 16 w + g, then of row 16 w + g + 8. Descriptors name
/// operands in shared memory; an operand a in registers has the layout of mma_m16n8k16. Until warpgroup_wait() returns,
/// nothing may touch d, the registers of a, or the memory that the descriptors name.
///
///   fence_operand(d);  warpgroup_arrive();  wgmma<...>(d, ...);  ...  warpgroup_commit();  ...
///   warpgroup_wait<0>();  fence_operand(d);
template <class T, Major kAMajor, Major kBMajor, int kNumAcc>
__device__ __forceinline__ void wgmma(float (&d)[kNumAcc], std::uint64_t a, std::uint64_t b, bool accumulate);
template <class T, Major kBMajor, int kNumAcc>
__device__ __forceinline__ void wgmma(float (&d)[kNumAcc], std::uint32_t const (&a)[4], std::uint64_t b,
                                      bool accumulate);

#if defined(HEADWAY_DEVICE_EMULATOR)

inline void warpgroup_arrive() {}
inline void warpgroup_commit() { device_emulator::warpgroup_commit(); }
template <int kNumLeft>
void warpgroup_wait() {
  device_emulator::warpgroup_wait(kNumLeft);
}
template <class Number, int kSize>
void fence_operand(Number (&)[kSize]) {}

template <class T, Major kAMajor, Major kBMajor, int kNumAcc>
void wgmma(float (&d)[kNumAcc], std::uint64_t a, std::uint64_t b, bool accumulate) {
  device_emulator::wgmma({.d = d,
                          .num_acc = kNumAcc,
                          .a = a,
                          .b = b,
                          .is_a_transposed = kAMajor == Major::kMN,
                          .is_b_transposed = kBMajor == Major::kMN,
                          .accumulate = accumulate,
                          .to_float = [](std::uint16_t bits) { return to_float(T{bits}); }});
}
template <class T, Major kBMajor, int kNumAcc>
void wgmma(float (&d)[kNumAcc], std::uint32_t const (&a)[4], std::uint64_t b, bool accumulate) {
  device_emulator::wgmma({.d = d,
                          .num_acc = kNumAcc,
                          .a_registers = a,
                          .b = b,
                          .is_b_transposed = kBMajor == Major::kMN,
                          .accumulate = accumulate,
                          .to_float = [](std::uint16_t bits) { return to_float(T{bits}); }});
}

#else

/// wgmma.fence: call it before the first wgmma() after registers of its operands (a or d) were written.
__device__ __forceinline__ void warpgroup_arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
/// Closes a group of the wgmma operations since the last call (wgmma.commit_group).
__device__ __forceinline__ void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits until at most the `kNumLeft` youngest groups are pending (wgmma.wait_group).
template <int kNumLeft>
__device__ __forceinline__ void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kNumLeft) : "memory");
}

/// Keeps the compiler from moving reads and writes of these registers across this point: it does not know that wgmma is
/// asynchronous. No instruction is emitted.
template <int kSize>
__device__ __forceinline__ void fence_operand(float (&registers)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}
template <int kSize>
__device__ __forceinline__ void fence_operand(std::uint32_t (&registers)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

/// Is there an instruction for this number of accumulator registers per thread? Twice that number is the number of
/// columns.
template <int kNumAcc>
inline constexpr bool kHasShape = kNumAcc == 16 || kNumAcc == 32 || kNumAcc == 40 || kNumAcc == 64 || kNumAcc == 128;

// clang-format off
template <class T, Major kAMajor, Major kBMajor, int kNumAcc>
__device__ __forceinline__ void wgmma(float (&d)[kNumAcc], std::uint64_t a, std::uint64_t b, bool accumulate) {
  static_assert(kHasShape<kNumAcc>);
  constexpr bool kIsBfloat16 = std::is_same_v<T, Bfloat16>;
  if constexpr (kNumAcc == 16 && kIsBfloat16) HEADWAY_WGMMA_SS(16, "32", "bf16", "16", "17", "18", "19", "20");
  if constexpr (kNumAcc == 16 && !kIsBfloat16) HEADWAY_WGMMA_SS(16, "32", "f16", "16", "17", "18", "19", "20");
  if constexpr (kNumAcc == 32 && kIsBfloat16) HEADWAY_WGMMA_SS(32, "64", "bf16", "32", "33", "34", "35", "36");
  if constexpr (kNumAcc == 32 && !kIsBfloat16) HEADWAY_WGMMA_SS(32, "64", "f16", "32", "33", "34", "35", "36");
  if constexpr (kNumAcc == 40 && kIsBfloat16) HEADWAY_WGMMA_SS(40, "80", "bf16", "40", "41", "42", "43", "44");
  if constexpr (kNumAcc == 40 && !kIsBfloat16) HEADWAY_WGMMA_SS(40, "80", "f16", "40", "41", "42", "43", "44");
  if constexpr (kNumAcc == 64 && kIsBfloat16) HEADWAY_WGMMA_SS(64, "128", "bf16", "64", "65", "66", "67", "68");
  if constexpr (kNumAcc == 64 && !kIsBfloat16) HEADWAY_WGMMA_SS(64, "128", "f16", "64", "65", "66", "67", "68");
  if constexpr (kNumAcc == 128 && kIsBfloat16) HEADWAY_WGMMA_SS(128, "256", "bf16", "128", "129", "130", "131", "132");
  if constexpr (kNumAcc == 128 && !kIsBfloat16) HEADWAY_WGMMA_SS(128, "256", "f16", "128", "129", "130", "131", "132");
}

template <class T, Major kBMajor, int kNumAcc>
__device__ __forceinline__ void wgmma(float (&d)[kNumAcc], std::uint32_t const (&a)[4], std::uint64_t b,
                                         bool accumulate) {
  static_assert(kHasShape<kNumAcc>);
  constexpr bool kIsBfloat16 = std::is_same_v<T, Bfloat16>;
  if constexpr (kNumAcc == 16 && kIsBfloat16) HEADWAY_WGMMA_RS(16, "32", "bf16", "16", "17", "18", "19", "20", "21", "22");
  if constexpr (kNumAcc == 16 && !kIsBfloat16) HEADWAY_WGMMA_RS(16, "32", "f16", "16", "17", "18", "19", "20", "21", "22");
  if constexpr (kNumAcc == 32 && kIsBfloat16) HEADWAY_WGMMA_RS(32, "64", "bf16", "32", "33", "34", "35", "36", "37", "38");
  if constexpr (kNumAcc == 32 && !kIsBfloat16) HEADWAY_WGMMA_RS(32, "64", "f16", "32", "33", "34", "35", "36", "37", "38");
  if constexpr (kNumAcc == 40 && kIsBfloat16) HEADWAY_WGMMA_RS(40, "80", "bf16", "40", "41", "42", "43", "44", "45", "46");
  if constexpr (kNumAcc == 40 && !kIsBfloat16) HEADWAY_WGMMA_RS(40, "80", "f16", "40", "41", "42", "43", "44", "45", "46");
  if constexpr (kNumAcc == 64 && kIsBfloat16) HEADWAY_WGMMA_RS(64, "128", "bf16", "64", "65", "66", "67", "68", "69", "70");
  if constexpr (kNumAcc == 64 && !kIsBfloat16) HEADWAY_WGMMA_RS(64, "128", "f16", "64", "65", "66", "67", "68", "69", "70");
  if constexpr (kNumAcc == 128 && kIsBfloat16) HEADWAY_WGMMA_RS(128, "256", "bf16", "128", "129", "130", "131", "132", "133", "134");
  if constexpr (kNumAcc == 128 && !kIsBfloat16) HEADWAY_WGMMA_RS(128, "256", "f16", "128", "129", "130", "131", "132", "133", "134");
}
// clang-format on

#undef HEADWAY_WGMMA_SS
#undef HEADWAY_WGMMA_RS

#endif

}  // namespace headway::kernels
