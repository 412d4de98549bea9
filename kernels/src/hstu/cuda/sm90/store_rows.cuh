// SPDX-License-Identifier: Apache-2.0

// Stores of accumulators. A thread's accumulator has pairs of columns 8 apart: 4 bytes each after rounding. Four
// neighbouring lanes exchange them, so that each lane stores 16 contiguous bytes: a quarter of the store
// instructions.
//
// Example: lanes 0 to 3 have, of columns 0 to 31, the pairs at 2t, 8 + 2t, 16 + 2t and 24 + 2t. Afterwards lane 0 has
// columns 0 to 7, lane 1 columns 8 to 15, and so on.

#pragma once

#include "cuda/device.cuh"
#include "cuda/element.cuh"
#include "headway/kernels/hstu_attention.hpp"
#include "hstu/cuda/sm90/fragment_coord.cuh"

#include <cstdint>

namespace headway::kernels {

/// Transposes a 4x4 matrix of words over four neighbouring lanes: afterwards word i of lane t is the former word t of
/// lane i. It takes 4 shuffles.
__device__ __forceinline__ void transpose_in_quad(std::uint32_t (&words)[4]) {
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    bool const is_upper = (threadIdx.x & static_cast<unsigned>(bit)) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & bit) != 0) continue;
      std::uint32_t const given = is_upper ? words[i] : words[i | bit];
      std::uint32_t const taken = __shfl_xor_sync(kAllLanes, given, bit);
      words[i | bit] = is_upper ? words[i | bit] : taken;
      words[i] = is_upper ? taken : words[i];
    }
  }
}

/// Destination of a thread's accumulator: rows of one head of a sequence.
struct OutputRows {
  std::uint16_t* data;  ///< Address of the first row and the thread's first column.
  std::int64_t token_stride;
  std::int32_t num_rows;  ///< From the first row to the sequence's end.
  float scale;            ///< Factor of the accumulator.

  __device__ __forceinline__ OutputRows(JaggedHeads<std::uint16_t*> const& rows, std::int64_t first_row,
                                        std::int32_t head, FragmentCoord const& coord, std::int32_t sequence_rows,
                                        float factor)
      // transpose_in_quad() gives a thread the 8 columns from 4 times its first column on.
      : data(rows.data + (first_row + coord.row) * rows.token_stride + head * rows.head_stride + 4 * coord.column),
        token_stride(rows.token_stride),
        num_rows(sequence_rows - coord.row),
        scale(factor) {}
};

/// Rounds and stores an accumulator, 16 bytes at a time. All threads of a warpgroup call it.
template <class T, int kNumAcc>
__device__ __forceinline__ void store_rows(float const (&acc)[kNumAcc], OutputRows const& output) {
#pragma unroll
  for (int first = 0; first < kNumAcc / 4; first += 4) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      std::uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        int const at = 4 * (first + i) + 2 * r;
        words[i] = pack<T>(acc[at] * output.scale, acc[at + 1] * output.scale);
      }
      transpose_in_quad(words);
      if (8 * r < output.num_rows) {
        store_v4_streaming(output.data + 8 * r * output.token_stride + 8 * first, words);
      }
    }
  }
}

}  // namespace headway::kernels
