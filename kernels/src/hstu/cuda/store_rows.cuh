#pragma once

#include "cuda/element.cuh"
#include "headway/kernels/hstu_attention.hpp"
#include "hstu/cuda/fragment_place.cuh"
#include "hstu/cuda/quad_transpose.cuh"

#include <cstdint>

namespace headway::kernels {

/// Destination of a thread's accumulator: rows of one head of a sequence.
struct OutputRows {
  std::uint16_t* data;  ///< Address of the first row and the thread's first column.
  std::int64_t token_stride;
  std::int32_t num_rows;  ///< From the first row to the sequence's end.
  float scale;            ///< Factor of the accumulator.

  __device__ __forceinline__ OutputRows(JaggedHeads<std::uint16_t*> const& rows, std::int64_t first_row,
                                        std::int32_t head, FragmentPlace const& place, std::int32_t sequence_rows,
                                        float factor)
      // transpose_in_quad() gives a thread the 8 columns from 4 times its first column on.
      : data(rows.data + (first_row + place.row) * rows.token_stride + head * rows.head_stride + 4 * place.column),
        token_stride(rows.token_stride),
        num_rows(sequence_rows - place.row),
        scale(factor) {}
};

/// Rounds and stores an accumulator, 16 bytes at a time. All threads of a warpgroup call it.
template <class T, int kSums>
__device__ __forceinline__ void store_rows(float const (&sums)[kSums], OutputRows const& output) {
#pragma unroll
  for (int first = 0; first < kSums / 4; first += 4) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      std::uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        int const at = 4 * (first + i) + 2 * r;
        words[i] = pack<T>(sums[at] * output.scale, sums[at + 1] * output.scale);
      }
      transpose_in_quad(words);
      if (8 * r < output.num_rows) {
        store_four(output.data + 8 * r * output.token_stride + 8 * first, words);
      }
    }
  }
}

}  // namespace headway::kernels
