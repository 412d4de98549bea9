#pragma once

#include "headway/kernels/weight_update.hpp"

#include <array>
#include <cstddef>
#include <span>

namespace headway::kernels {

/// What is done with embeddings and their optimizer state, compiled for an instruction set. All sets give the same
/// bits: sums have one order, and products are rounded before they are added.
struct VectorKernels {
  /// Partial sums of a mean of squares: column c belongs to partial sum c % kPartialSums.
  static constexpr std::size_t kPartialSums = 16;
  /// What `to` of stream() is aligned to, and a multiple of what its vectors have.
  static constexpr std::size_t kStreamBytes = 64;

  char const* instruction_set;
  /// sum[c] += weights[i] * vectors[i][c] for each i below `count`, in order. Null: all weights are 1.
  void (*add)(std::size_t dim, std::size_t count, float const* const* vectors, float const* weights, float* sum);
  struct Vectors {
    float const* const* at;  ///< (count)
    std::size_t count;
  };
  /// Copies vectors[i] to the i-th of the vectors at `to`, unless it is null, and meanwhile prefetches next[i].
  void (*gather)(std::size_t dim, Vectors const& vectors, Vectors const& next, float* to);
  /// The same past the caches, for more than these hold.
  void (*stream)(std::size_t dim, Vectors const& vectors, Vectors const& next, float* to);
  /// One step of the optimizer, by its kind: RowOptimizer::update().
  using Update = void (*)(UpdateFactors const& by, std::size_t dim, float* weights, float* state, float& row_state,
                          float const* gradient);
  std::array<Update, 5> update;
};

/// Kernels that this processor can run, the fastest last.
[[nodiscard]] std::span<VectorKernels const> usable_vector_kernels();
[[nodiscard]] inline VectorKernels const& fastest_vector_kernels() { return usable_vector_kernels().back(); }

}  // namespace headway::kernels
