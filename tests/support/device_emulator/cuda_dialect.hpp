// SPDX-License-Identifier: Apache-2.0
#pragma once

// Extensions of CUDA C++, for kernels that run in the emulator.

#include "grid.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

// How kernels of CUDA C++ compile with g++:
//
// - Keywords become nothing, or the closest word of C++. `__shared__` variables are static: that is right
//   only while one block runs at a time (LaunchOptions::concurrent_blocks).
// - Built-in variables ask for the thread whose fiber runs.
// - Operations of a warp meet in Block::meet(): each lane leaves its argument and waits, and the last one computes
//   the results of all lanes.
// - Fences do nothing, as one thread of the host runs everything. So a missing fence is not found here.
//
// Device code tests HEADWAY_DEVICE_EMULATOR where it uses PTX, and calls the emulation instead.
#define HEADWAY_DEVICE_EMULATOR 1

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __noinline__
#define __shared__ static
#define __grid_constant__
#define __launch_bounds__(...)

#define threadIdx (::headway::device_emulator::this_thread().index)
#define blockIdx (::headway::device_emulator::this_thread().block->index())
#define blockDim (::headway::device_emulator::this_thread().block->options().block)
#define gridDim (::headway::device_emulator::this_thread().block->options().grid)

// The names are CUDA's.
struct int2 {
  int x, y;
};
struct int4 {
  int x, y, z, w;
};
struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline int2 make_int2(int x, int y) { return {x, y}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

using std::max;
using std::min;

template <class T>
T __ldg(T const* address) {
  return *address;
}
template <class T>
T __ldcg(T const* address) {
  return *address;
}
// Functions that the hardware approximates, such as __expf(), are exact here.
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline int __float_as_int(float value) { return std::bit_cast<int>(value); }
inline float __uint_as_float(unsigned value) { return std::bit_cast<float>(value); }
inline float __int_as_float(int value) { return std::bit_cast<float>(value); }
inline int __popc(unsigned value) { return std::popcount(value); }
inline int __clz(int value) { return std::countl_zero(static_cast<unsigned>(value)); }
inline int __ffs(int value) { return value == 0 ? 0 : std::countr_zero(static_cast<unsigned>(value)) + 1; }
inline float __int2float_rn(int value) { return static_cast<float>(value); }
inline float __ll2float_rn(long long value) { return static_cast<float>(value); }
inline float __expf(float value) { return std::exp(value); }
inline float __fdividef(float a, float b) { return a / b; }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __trap() { throw headway::device_emulator::KernelError("trap"); }

// Threads run one at a time, so plain operations are atomic.
template <class T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  T const old = *address;
  *address = old + value;
  return old;
}
template <class T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  T const old = *address;
  *address = std::max(old, value);
  return old;
}
template <class T>
T atomicMin(T* address, std::type_identity_t<T> value) {
  T const old = *address;
  *address = std::min(old, value);
  return old;
}
template <class T>
T atomicExch(T* address, std::type_identity_t<T> value) {
  T const old = *address;
  *address = value;
  return old;
}
template <class T>
T atomicCAS(T* address, std::type_identity_t<T> compare, std::type_identity_t<T> value) {
  T const old = *address;
  if (old == compare) *address = value;
  return old;
}

inline void __syncthreads() {
  auto& block = *headway::device_emulator::this_thread().block;
  block.sync(0, block.options().block.volume(), "__syncthreads");
}
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  headway::device_emulator::this_thread().block->meet(mask, "__syncwarp", nullptr, nullptr);
}

namespace headway::device_emulator {

/// Argument and result of a lane in a shuffle.
template <class T>
struct Exchange {
  T value;
  unsigned source, mask;  ///< The lane whose value this lane gets.
  T result;
};

template <class T>
T exchange(char const* name, unsigned mask, T value, unsigned source) {
  Exchange<T> mine{value, source, mask, value};
  this_thread().block->meet(mask, name, &mine, [](void* const* lanes) {
    unsigned const members =
        static_cast<Exchange<T>*>(*std::find_if(lanes, lanes + 32, [](void* p) { return p; }))->mask;
    for (unsigned lane = 0; lane < 32; ++lane) {
      if ((members >> lane & 1) == 0) continue;
      auto& own = *static_cast<Exchange<T>*>(lanes[lane]);
      if ((members >> (own.source % 32) & 1) == 0) throw KernelError("a shuffle reads a lane that is not in its mask");
      own.result = static_cast<Exchange<T>*>(lanes[own.source % 32])->value;
    }
  });
  return mine.result;
}

}  // namespace headway::device_emulator

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  unsigned const lane = headway::device_emulator::this_thread().lane();
  unsigned const first = lane / unsigned(width) * unsigned(width);
  return headway::device_emulator::exchange("__shfl_sync", mask, value, first + unsigned(source) % unsigned(width));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  unsigned const lane = headway::device_emulator::this_thread().lane();
  unsigned const source = lane ^ unsigned(bits);
  bool const is_near = source / unsigned(width) == lane / unsigned(width);
  return headway::device_emulator::exchange("__shfl_xor_sync", mask, value, is_near ? source : lane);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  unsigned const lane = headway::device_emulator::this_thread().lane();
  bool const is_near = lane % unsigned(width) + delta < unsigned(width);
  return headway::device_emulator::exchange("__shfl_down_sync", mask, value, is_near ? lane + delta : lane);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  unsigned const lane = headway::device_emulator::this_thread().lane();
  bool const is_near = lane % unsigned(width) >= delta;
  return headway::device_emulator::exchange("__shfl_up_sync", mask, value, is_near ? lane - delta : lane);
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  /// Argument and result of a lane.
  struct Vote {
    unsigned mask;
    bool is_for;
    unsigned result;
  } mine{mask, predicate != 0, 0};
  headway::device_emulator::this_thread().block->meet(mask, "__ballot_sync", &mine, [](void* const* lanes) {
    unsigned const members = static_cast<Vote*>(*std::find_if(lanes, lanes + 32, [](void* p) { return p; }))->mask;
    unsigned votes = 0;
    for (unsigned i = 0; i < 32; ++i) {
      if (members >> i & 1) votes |= unsigned(static_cast<Vote*>(lanes[i])->is_for) << i;
    }
    for (unsigned i = 0; i < 32; ++i) {
      if (members >> i & 1) static_cast<Vote*>(lanes[i])->result = votes;
    }
  });
  return mine.result;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == mask; }
/// All lanes must call it.
inline int __reduce_max_sync(unsigned mask, int value) {
  for (int bits = 1; bits < 32; bits *= 2) value = std::max(value, __shfl_xor_sync(mask, value, bits));
  return value;
}
inline int __reduce_min_sync(unsigned mask, int value) { return ~__reduce_max_sync(mask, ~value); }
/// Selects four bytes from two words. `selector` has 4 bits per byte; values from 4 on select bytes of `high`.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  unsigned long long const both = (unsigned long long)high << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) result |= unsigned(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return result;
}
/// One lane: threads run one at a time, so no other lane is active with it. Kernels may not rely on more.
inline unsigned __activemask() { return 1u << headway::device_emulator::this_thread().lane(); }
