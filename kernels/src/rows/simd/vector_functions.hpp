// SPDX-License-Identifier: Apache-2.0

// Vector functions for embedding rows and row optimizers (VectorKernels), compiled per instruction set.
//
// Idea: loops over columns use vectors of 16 floats; the compiler splits them into as many registers as the instruction
// set needs. Updates follow torch.optim (weight_update.hpp); row-wise rules use the mean of squares of the gradient.
//
// Example: row-wise Adagrad, gradient 3 4, state 0: the mean of squares is 12.5, the state becomes 12.5, and each
// weight moves by rate * gradient / (sqrt(12.5) + epsilon).
//
// Invariants: all instruction sets give the same bits. Flags forbid fused multiply-add, and the mean of squares has
// kPartialSums partial sums on each, which are then added by halves. Everything has internal linkage or is always
// inlined, and calls nothing of the standard library: the linker could otherwise use a function compiled for newer
// processors in other files.
// Complexity: one pass over the row; two passes for row-wise rules.
// Source: torch.optim (Adagrad, Adam, AdamW); row-wise Adagrad as in FBGEMM.

#pragma once

#include "headway/kernels/row_optimizer.hpp"
#include "headway/kernels/vector_kernels.hpp"
#include "headway/kernels/weight_update.hpp"

#include <cstddef>
#include <cstdint>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace headway::kernels::rows {
namespace {

inline constexpr std::size_t kLanes = VectorKernels::kPartialSums;
/// Vector of 16 floats; the compiler lowers it to as many registers as the instruction set needs.
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));

inline void load(float const* from, Lanes& to) { __builtin_memcpy(&to, from, sizeof(Lanes)); }
inline void store(Lanes const& from, float* to) { __builtin_memcpy(to, &from, sizeof(Lanes)); }

// Sums of rows.

/// Sums `count` rows for `kBlocks` times kLanes columns from `column` on, with the sums in registers. They begin with
/// `sum` (kAdds) or with 0. Null weights are all 1.
template <bool kAdds, std::size_t kBlocks>
inline void sum_columns(std::size_t column, std::size_t count, float const* const* vectors, float const* weights,
                        float* sum) {
  Lanes sums[kBlocks]{};
  for (std::size_t block = 0; kAdds && block < kBlocks; ++block) load(sum + column + block * kLanes, sums[block]);
  for (std::size_t i = 0; i < count; ++i) {
    float const weight = weights == nullptr ? 1 : weights[i];
    for (std::size_t block = 0; block < kBlocks; ++block) {
      Lanes values;
      load(vectors[i] + column + block * kLanes, values);
      sums[block] += weight * values;
    }
  }
  for (std::size_t block = 0; block < kBlocks; ++block) store(sums[block], sum + column + block * kLanes);
}

template <bool kAdds>
inline void sum_rows(std::size_t dim, std::size_t count, float const* const* vectors, float const* weights,
                     float* sum) {
  constexpr std::size_t kManyBlocks = 4;
  std::size_t column = 0;
  for (; column + kManyBlocks * kLanes <= dim; column += kManyBlocks * kLanes) {
    sum_columns<kAdds, kManyBlocks>(column, count, vectors, weights, sum);
  }
  for (; column + kLanes <= dim; column += kLanes) sum_columns<kAdds, 1>(column, count, vectors, weights, sum);
  for (std::size_t rest = column; !kAdds && rest < dim; ++rest) sum[rest] = 0;
  for (std::size_t i = 0; i < count && column < dim; ++i) {
    float const weight = weights == nullptr ? 1 : weights[i];
    for (std::size_t rest = column; rest < dim; ++rest) sum[rest] += weight * vectors[i][rest];
  }
}

/// All exponent bits of a float are set in infinities and NaNs alone. Adding 1 to such an exponent sets the sign bit.
inline bool are_finite(std::size_t size, float const* values) {
  constexpr std::uint32_t kExponent = 0x7f800000, kOne = 0x00800000, kSign = 0x80000000;
  std::uint32_t any = 0;  // A loop without branches, which the compiler vectorizes.
  for (std::size_t i = 0; i < size; ++i) {
    std::uint32_t bits;
    __builtin_memcpy(&bits, values + i, sizeof(bits));
    any |= (bits & kExponent) + kOne;
  }
  return (any & kSign) == 0;
}

// Copies of rows.

/// Prefetches a row into the L2 cache.
inline void prefetch_vector(float const* vector, std::size_t dim) {
  for (std::size_t column = 0; column < dim; column += kLanes) __builtin_prefetch(vector + column, 0, 2);
}

/// Calls `copy(from, to)` for each row that is not null, and prefetches the rows of `next` (the caller's next gather)
/// meanwhile.
template <class Copy>
inline void gather_by(std::size_t dim, VectorKernels::Vectors const& vectors, VectorKernels::Vectors const& next,
                      float* to, Copy copy) {
  for (std::size_t i = 0; i < vectors.count || i < next.count; ++i) {
    if (i < next.count && next.at[i] != nullptr) prefetch_vector(next.at[i], dim);
    if (i < vectors.count && vectors.at[i] != nullptr) copy(vectors.at[i], to + i * dim);
  }
}

inline void gather(std::size_t dim, VectorKernels::Vectors const& vectors, VectorKernels::Vectors const& next,
                   float* to) {
  gather_by(dim, vectors, next, to, [dim](float const* from, float* out) {
    std::size_t column = 0;
    for (; column + kLanes <= dim; column += kLanes) {
      Lanes values;
      load(from + column, values);
      store(values, out + column);
    }
    for (; column < dim; ++column) out[column] = from[column];
  });
}

/// Stores 64 bytes with non-temporal stores, which bypass the caches.
inline void stream_line(float const* from, float* to) {
#if defined(__AVX512F__)
  _mm512_stream_ps(to, _mm512_loadu_ps(from));
#elif defined(__AVX2__)
  for (int i = 0; i < 16; i += 8) _mm256_stream_ps(to + i, _mm256_loadu_ps(from + i));
#elif defined(__x86_64__)
  for (int i = 0; i < 16; i += 4) _mm_stream_ps(to + i, _mm_loadu_ps(from + i));
#else
  Lanes values;
  load(from, values);
  store(values, to);
#endif
}

/// `to` must be aligned to 64 bytes (VectorKernels::kStreamBytes), and `dim` a multiple of 16 floats.
inline void stream(std::size_t dim, VectorKernels::Vectors const& vectors, VectorKernels::Vectors const& next,
                   float* to) {
  gather_by(dim, vectors, next, to, [dim](float const* from, float* out) {
    for (std::size_t column = 0; column < dim; column += kLanes) stream_line(from + column, out + column);
  });
#if defined(__x86_64__)
  _mm_sfence();  // Orders the non-temporal stores before whatever tells other threads that the call is over.
#endif
}

// Optimizers.

/// (sum of squares) / dim of the gradient with L2 decay. It has kPartialSums partial sums, which are then added by
/// halves.
inline float mean_of_squares(UpdateFactors const& by, std::size_t dim, float const* weights, float const* gradient) {
  Lanes sums{};
  std::size_t column = 0;
  for (; column + kLanes <= dim; column += kLanes) {
    Lanes values, decayed;
    load(gradient + column, values);
    load(weights + column, decayed);
    values += by.l2 * decayed;
    sums += values * values;
  }
  for (std::size_t lane = 0; column < dim; ++column, ++lane) {
    float const value = with_decay(by, gradient[column], weights[column]);
    sums[lane] += value * value;
  }
  float partial[kLanes];
  store(sums, partial);
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t lane = 0; lane < half; ++lane) partial[lane] += partial[lane + half];
  }
  return partial[0] / static_cast<float>(dim);
}

// Factors are copied into a local: the compiler then knows that no store to a weight changes them, and keeps them in
// registers.

inline void sgd(UpdateFactors const& factors, std::size_t dim, float* __restrict weights, float* /*state*/,
                float& /*row_state*/, float const* __restrict gradient) {
  UpdateFactors const by = factors;
  for (std::size_t i = 0; i < dim; ++i) update_sgd(by, weights[i], with_decay(by, gradient[i], weights[i]));
}

inline void adagrad(UpdateFactors const& factors, std::size_t dim, float* __restrict weights, float* __restrict state,
                    float& /*row_state*/, float const* __restrict gradient) {
  UpdateFactors const by = factors;
  for (std::size_t i = 0; i < dim; ++i) {
    update_adagrad(by, weights[i], state[i], with_decay(by, gradient[i], weights[i]));
  }
}

inline void row_wise_adagrad(UpdateFactors const& factors, std::size_t dim, float* __restrict weights, float* /*state*/,
                             float& row_state, float const* __restrict gradient) {
  UpdateFactors const by = factors;
  float const rate = row_rate_of_adagrad(by, row_state, mean_of_squares(by, dim, weights, gradient));
  for (std::size_t i = 0; i < dim; ++i) {
    update_by_row_rate(by, rate, weights[i], with_decay(by, gradient[i], weights[i]));
  }
}

inline void adam(UpdateFactors const& factors, std::size_t dim, float* __restrict weights, float* __restrict state,
                 float& /*row_state*/, float const* __restrict gradient) {
  UpdateFactors const by = factors;
  float* const __restrict first = state;
  float* const __restrict second = state + dim;
  for (std::size_t i = 0; i < dim; ++i) {
    update_adam(by, weights[i], first[i], second[i], with_decay(by, gradient[i], weights[i]));
  }
}

inline void row_wise_adam(UpdateFactors const& factors, std::size_t dim, float* __restrict weights,
                          float* __restrict state, float& row_state, float const* __restrict gradient) {
  UpdateFactors const by = factors;
  float const rate = row_rate_of_adam(by, row_state, mean_of_squares(by, dim, weights, gradient));
  for (std::size_t i = 0; i < dim; ++i) {
    update_moment_by_row_rate(by, rate, weights[i], state[i], with_decay(by, gradient[i], weights[i]));
  }
}

constexpr VectorKernels vector_kernels_of(char const* instruction_set) {
  static_assert(static_cast<int>(OptimizerKind::kSgd) == 0 && static_cast<int>(OptimizerKind::kAdagrad) == 1 &&
                static_cast<int>(OptimizerKind::kRowWiseAdagrad) == 2 && static_cast<int>(OptimizerKind::kAdam) == 3 &&
                static_cast<int>(OptimizerKind::kRowWiseAdam) == 4);
  return {.instruction_set = instruction_set,
          .add = sum_rows<true>,
          .sum = sum_rows<false>,
          .are_finite = are_finite,
          .gather = gather,
          .stream = stream,
          .update = {sgd, adagrad, row_wise_adagrad, adam, row_wise_adam}};
}

}  // namespace
}  // namespace headway::kernels::rows
