// SPDX-License-Identifier: Apache-2.0

// Segmented sum on the CPU: the gradient of each unique key, from the gradients of the bags that contain it.
//
// Idea: csr_indices lists the batch positions of each unique key; a position has a bag and a weight. The sum over a
// key's positions is taken in batch order, 16 rows per call of a vector kernel, so that the sum stays in registers.
//
// Example: batch 7 9 7, bags {7 9} and {7}, no weights. sum(7) = values[0] + values[1], sum(9) = values[0].
//
// Invariants: each key is summed by one thread, in the order of the batch: results have the same bits for any number of
//  threads. Complexity: O(keys of the batch * dim); 4 bytes of scratch memory per key if bags have offsets.

#pragma once

#include "cpu/rows/sum_vectors.hpp"
#include "headway/base/thread_pool.hpp"
#include "headway/embedding/table.hpp"
#include "headway/kernels/vector_kernels.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace headway::embedding {

/// Sums, for each unique key, the values of the bags that contain it (the backward pass of pooling). Sums are taken in
/// the order of the batch.
class CpuSegmentedSum {
 public:
  /// Maps keys to their bags, on the threads of `thread_pool`. Keeps views of all arguments.
  /// @param values (bags, dim)
  CpuSegmentedSum(CsrMap const& csr, Bags const& bags, std::size_t dim, std::span<float const> values,
                  base::ThreadPool& thread_pool)
      : csr_(csr), weights_(bags.weights), dim_(dim), values_(values) {
    if (bags.offsets.empty()) return;
    bag_of_.resize(csr.inverse_indices.size());
    thread_pool.in_ranges(bags.offsets.size() - 1, [&](std::size_t /*range*/, std::size_t first, std::size_t end) {
      for (std::size_t bag = first; bag < end; ++bag) {
        std::fill(bag_of_.begin() + bags.offsets[bag], bag_of_.begin() + bags.offsets[bag + 1],
                  static_cast<std::uint32_t>(bag));
      }
    });
  }

  /// Sets `sum` (dim) to the weighted sum for unique key `index`. Any thread may call it.
  void reduce(std::size_t index, std::span<float> sum) const {
    std::array<float const*, kValuesAtOnce> values;
    std::array<float, kValuesAtOnce> weights;
    std::size_t const begin = csr_.csr_offsets[index], end = csr_.csr_offsets[index + 1];
    auto const locate = [&](std::size_t first, std::size_t count) -> SumTerms {
      for (std::size_t i = 0; i < count; ++i) {
        std::size_t const key = csr_.csr_indices[first + i], bag = bag_of_.empty() ? key : bag_of_[key];
        values[i] = &values_[bag * dim_];
        if (!weights_.empty()) weights[i] = weights_[key];
      }
      return {.vectors = values.data(), .weights = weights_.empty() ? nullptr : weights.data()};
    };
    sum_vectors<kValuesAtOnce>(kernels_, begin, end, locate, sum);
  }

 private:
  static constexpr std::size_t kValuesAtOnce = 16;  ///< Values added per call of the kernel.

  kernels::VectorKernels const& kernels_ = kernels::fastest_vector_kernels();
  CsrMap csr_;
  std::span<float const> weights_;
  std::size_t dim_;
  std::span<float const> values_;
  std::vector<std::uint32_t> bag_of_;  ///< (keys) Bag of each key; empty if each key is its own bag.
};

}  // namespace headway::embedding
