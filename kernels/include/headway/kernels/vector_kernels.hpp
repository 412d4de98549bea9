// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/kernels/weight_update.hpp"

#include <array>
#include <cstddef>
#include <span>

namespace headway::kernels {

/// Vector functions for embedding rows and their optimizer state, compiled per instruction set. All sets give the same
/// bits: sums have one order, and products are rounded before they are added.
struct VectorKernels {
  /// Partial sums of a mean of squares: column c belongs to partial sum c % kPartialSums.
  static constexpr std::size_t kPartialSums = 16;
  /// Alignment that stream() requires of `to`, in bytes; the size of a row must be a multiple of it.
  static constexpr std::size_t kStreamBytes = 64;

  char const* instruction_set;
  /// sum[c] += weights[i] * vectors[i][c] for each i below `count`, in order. Null weights are all 1.
  using Sum = void (*)(std::size_t dim, std::size_t count, float const* const* vectors, float const* weights,
                       float* sum);
  Sum add;
  /// Same as add() to a sum of zeros, which need not be written first.
  Sum sum;
  /// Is no value infinite or NaN?
  bool (*are_finite)(std::size_t size, float const* values);
  /// List of row pointers.
  struct Vectors {
    float const* const* at;  ///< (count)
    std::size_t count;
  };
  /// Copies vectors[i] to row i of `to` unless it is null, and prefetches next[i].
  void (*gather)(std::size_t dim, Vectors const& vectors, Vectors const& next, float* to);
  /// Same as gather() with non-temporal stores, for outputs larger than the caches.
  void (*stream)(std::size_t dim, Vectors const& vectors, Vectors const& next, float* to);
  /// One optimizer step for one row: see RowOptimizer::update().
  using Update = void (*)(UpdateFactors const& by, std::size_t dim, float* weights, float* state, float& row_state,
                          float const* gradient);
  std::array<Update, 5> update;  ///< By OptimizerKind.
};

/// Instruction sets that this processor supports, the fastest last.
[[nodiscard]] std::span<VectorKernels const> usable_vector_kernels();
[[nodiscard]] inline VectorKernels const& fastest_vector_kernels() { return usable_vector_kernels().back(); }

}  // namespace headway::kernels
