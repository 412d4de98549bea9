// SPDX-License-Identifier: Apache-2.0

// The emulator of devices (tests/support/device_emulator): barriers, deadlock reports, asynchronous copies and mma must
// behave as CUDA does. AsyncTiming says when an asynchronous copy takes effect: at once (kEarly), or only when a thread
// waits for it (kLate).

#include "cuda/mma.cuh"
#include "cuda_dialect.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace headway::kernels {
namespace {

using device_emulator::AsyncTiming;
using device_emulator::KernelError;
using device_emulator::launch;

std::vector<Bfloat16> random_elements(std::size_t size) {
  std::mt19937 generator(7);
  std::uniform_int_distribution<int> digits(-8, 8);
  std::vector<Bfloat16> elements(size);
  for (auto& element : elements) element = from_float<Bfloat16>(static_cast<float>(digits(generator)));
  return elements;
}

TEST(DeviceEmulator, ThreadsSeeWhatOthersWroteBeforeABarrier) {
  std::vector<int> sums(2);
  launch({.grid = {2}, .block = {64}, .shared_bytes = 256}, [&] {
    auto* values = reinterpret_cast<int*>(shared_memory());
    values[threadIdx.x] = int(threadIdx.x);
    __syncthreads();
    int sum = values[63 - threadIdx.x];
    for (int bits = 1; bits < 32; bits *= 2) sum += __shfl_xor_sync(kAllLanes, sum, bits);
    if (__ballot_sync(kAllLanes, threadIdx.x % 32 == 3) != 8) sum = -1;
    if (threadIdx.x % 32 == 0) atomicAdd(&sums[blockIdx.x], sum);
  });
  EXPECT_EQ(sums, (std::vector{2016, 2016}));  // 0 + 1 + ... + 63
}

TEST(DeviceEmulator, ADeadlockSaysWhereThreadsWait) {
  try {
    launch({.block = {64}}, [] {
      if (threadIdx.x < 32) named_barrier_sync(3, 64);  // Barrier 3 waits for 64 threads.
    });
    FAIL() << "nothing was said";
  } catch (KernelError const& error) {
    EXPECT_NE(std::string(error.what()).find("32 threads, 0 to 31, in named_barrier_sync"), std::string::npos)
        << error.what();
  }
}

TEST(DeviceEmulator, LateCopiesAreThereOnlyAfterTheWait) {
  alignas(16) static int const source[4] = {1, 2, 3, 4};
  for (auto const timing : {AsyncTiming::kEarly, AsyncTiming::kLate}) {
    int before = 0, after = 0;
    launch({.block = {32}, .shared_bytes = 16, .timing = timing}, [&] {
      auto* copied = reinterpret_cast<int*>(shared_memory());
      if (threadIdx.x == 0) {
        copied[0] = 0;
        cp_async(copied, source);
        cp_async_commit();
        before = copied[0];
        cp_async_wait<0>();
        after = copied[0];
      }
    });
    EXPECT_EQ(before, timing == AsyncTiming::kEarly ? 1 : 0);
    EXPECT_EQ(after, 1);
  }
}

TEST(DeviceEmulator, AWarpMultipliesMatricesFromSharedMemory) {
  auto const a = random_elements(16 * 16), b = random_elements(16 * 8);
  std::vector<float> d(16 * 8);
  launch({.block = {32}, .shared_bytes = 1024}, [&] {
    auto* tile = reinterpret_cast<Bfloat16*>(shared_memory());
    std::copy(a.begin(), a.end(), tile);
    std::copy(b.begin(), b.end(), tile + 256);
    unsigned const lane = threadIdx.x, g = lane / 4, t = lane % 4;  // Group and thread in it, as in the PTX ISA.
    std::uint32_t a_part[4], b_part[4];
    ldmatrix_x4(a_part, tile + lane % 16 * 16 + lane / 16 * 8);
    ldmatrix_x4_trans(b_part, tile + 256 + lane % 16 * 8);
    float sum[4] = {};
    mma_m16n8k16<Bfloat16>(sum, a_part, {b_part[0], b_part[1]});
    for (unsigned i = 0; i < 4; ++i) d[(g + 8 * (i / 2)) * 8 + 2 * t + i % 2] = sum[i];
  });
  for (std::size_t i = 0; i < d.size(); ++i) {
    float expected = 0;
    for (std::size_t k = 0; k < 16; ++k) expected += to_float(a[i / 8 * 16 + k]) * to_float(b[k * 8 + i % 8]);
    EXPECT_EQ(d[i], expected) << i;
  }
}

}  // namespace
}  // namespace headway::kernels
