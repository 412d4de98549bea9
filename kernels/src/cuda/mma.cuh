// SPDX-License-Identifier: Apache-2.0

// Tensor-core products of one warp (mma.sync, ldmatrix) and asynchronous copies (cp.async): available since sm_80.
//
// A warp holds the operands of a product in fragments: each lane has a few elements, at places that the instruction
// fixes. ldmatrix brings tiles from shared memory into that layout; its transposed form serves operands that are
// stored the other way round. Example: lane 5 has g = 1 and t = 1, so its d[0] and d[1] are columns 2 and 3 of row 1.

#pragma once

#include "cuda/element.cuh"

// Tests compile kernels for an emulator on the CPU: see device.cuh.
#if defined(HEADWAY_DEVICE_EMULATOR)
#include "mma_emulation.hpp"
#endif

namespace headway::kernels {

/// d += a * b for a (16, 16), b (16, 8), d (16, 8). With g = lane / 4 and t = lane % 4, a lane holds
///   a[0], a[1], a[2], a[3]: columns 2t, 2t + 1 of rows g, g + 8; columns 2t + 8, 2t + 9 of rows g, g + 8
///   b[0], b[1]: rows 2t, 2t + 1 and rows 2t + 8, 2t + 9 of column g
///   d: columns 2t, 2t + 1 of row g, then of row g + 8
template <class T>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], std::uint32_t const (&a)[4], std::uint32_t const (&b)[2]);

/// Loads four 8x8 matrices of 16-bit numbers: lane l passes the address of row l % 8 of matrix l / 8. A lane receives
/// in m[i] the elements 2t and 2t + 1 of row g of matrix i; the transposed form gives those of column g.
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&m)[4], void const* row);
__device__ __forceinline__ void ldmatrix_x4_trans(std::uint32_t (&m)[4], void const* row);

/// Starts a copy of 16 bytes to shared memory. Only `num_bytes` are read; the rest is filled with 0.
__device__ __forceinline__ void cp_async(void* shared, void const* global, std::uint32_t num_bytes = 16);
/// Closes a group of the copies that this thread has started since the last call.
__device__ __forceinline__ void cp_async_commit();
/// Waits until at most the `kNumLeft` youngest groups of this thread are pending. Other threads see the data after a
/// barrier.
template <int kNumLeft>
__device__ __forceinline__ void cp_async_wait();

#if defined(HEADWAY_DEVICE_EMULATOR)

template <class T>
void mma_m16n8k16(float (&d)[4], std::uint32_t const (&a)[4], std::uint32_t const (&b)[2]) {
  device_emulator::mma_m16n8k16(d, a, b, [](std::uint16_t bits) { return to_float(T{bits}); });
}
inline void ldmatrix_x4(std::uint32_t (&m)[4], void const* row) { device_emulator::ldmatrix_x4(m, row, false); }
inline void ldmatrix_x4_trans(std::uint32_t (&m)[4], void const* row) { device_emulator::ldmatrix_x4(m, row, true); }
inline void cp_async(void* shared, void const* global, std::uint32_t num_bytes) {
  device_emulator::cp_async(shared, global, num_bytes);
}
inline void cp_async_commit() { device_emulator::this_thread().copies.commit(); }
template <int kNumLeft>
void cp_async_wait() {
  device_emulator::this_thread().copies.finish(kNumLeft);
}

#else

template <>
__device__ __forceinline__ void mma_m16n8k16<Bfloat16>(float (&d)[4], std::uint32_t const (&a)[4],
                                                       std::uint32_t const (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <>
__device__ __forceinline__ void mma_m16n8k16<Float16>(float (&d)[4], std::uint32_t const (&a)[4],
                                                      std::uint32_t const (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&m)[4], void const* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(std::uint32_t (&m)[4], void const* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(shared_address(row))
               : "memory");
}

__device__ __forceinline__ void cp_async(void* shared, void const* global, std::uint32_t num_bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
               "r"(num_bytes)
               : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kNumLeft>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kNumLeft) : "memory");
}

#endif

}  // namespace headway::kernels
