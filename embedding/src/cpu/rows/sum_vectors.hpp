// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/kernels/vector_kernels.hpp"

#include <algorithm>
#include <cstddef>
#include <span>

namespace headway::embedding {

/// Some of the vectors of a sum.
struct SumTerms {
  float const* const* vectors;
  float const* weights;  ///< One for each vector; null: all 1.
};

/// Sets `sum` to the sum of the vectors from `begin` to before `end`, in order; to zeros if there are none.
/// @param locate called with (first, count), count <= AtOnce: returns the SumTerms of `count` vectors from `first` on,
///   which stay valid until the next call.
template <std::size_t AtOnce, class Locate>
void sum_vectors(kernels::VectorKernels const& kernels, std::size_t begin, std::size_t end, Locate const& locate,
                 std::span<float> sum) {
  auto into = kernels.sum;
  std::size_t first = begin;
  do {
    std::size_t const count = std::min(AtOnce, end - first);
    SumTerms const terms = locate(first, count);
    into(sum.size(), count, terms.vectors, terms.weights, sum.data());
    into = kernels.add;
    first += count;
  } while (first < end);
}

}  // namespace headway::embedding
