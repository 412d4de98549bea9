#pragma once

#include "cpu/worker_pool.hpp"
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
class MemberSums {
 public:
  /// Maps keys to their bags, on the threads of `workers`. Keeps views of all arguments.
  /// @param values (bags, dim)
  MemberSums(Members const& members, Bags const& bags, std::size_t dim, std::span<float const> values,
             WorkerPool& workers)
      : members_(members), weights_(bags.weights), dim_(dim), values_(values) {
    if (bags.offsets.empty()) return;
    bag_of_.resize(members.numbers.size());
    workers.in_ranges(bags.offsets.size() - 1, [&](std::size_t /*range*/, std::size_t first, std::size_t end) {
      for (std::size_t bag = first; bag < end; ++bag) {
        std::fill(bag_of_.begin() + bags.offsets[bag], bag_of_.begin() + bags.offsets[bag + 1],
                  static_cast<std::uint32_t>(bag));
      }
    });
  }

  /// Sets `sum` (dim) to the weighted sum for unique key `number`. Any thread may call it.
  void add_up(std::size_t number, std::span<float> sum) const {
    std::ranges::fill(sum, 0);
    std::array<float const*, kMembersAtOnce> values;
    std::array<float, kMembersAtOnce> weights;
    std::size_t const end = members_.begins[number + 1];
    for (std::size_t first = members_.begins[number]; first < end; first += kMembersAtOnce) {
      std::size_t const count = std::min(kMembersAtOnce, end - first);
      for (std::size_t i = 0; i < count; ++i) {
        std::size_t const key = members_.members[first + i], bag = bag_of_.empty() ? key : bag_of_[key];
        values[i] = &values_[bag * dim_];
        if (!weights_.empty()) weights[i] = weights_[key];
      }
      kernels_.add(dim_, count, values.data(), weights_.empty() ? nullptr : weights.data(), sum.data());
    }
  }

 private:
  static constexpr std::size_t kMembersAtOnce = 16;  ///< Values added per call of the kernel.

  kernels::VectorKernels const& kernels_ = kernels::fastest_vector_kernels();
  Members members_;
  std::span<float const> weights_;
  std::size_t dim_;
  std::span<float const> values_;
  std::vector<std::uint32_t> bag_of_;  ///< (keys) Bag of each key; empty if each key is its own bag.
};

}  // namespace headway::embedding
