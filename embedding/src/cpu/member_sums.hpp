#pragma once

#include "cpu/worker_pool.hpp"
#include "headway/embedding/table.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace headway::embedding {

/// Sums of what the bags of unique keys' members have. The threads of `workers` find the bags.
class MemberSums {
 public:
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

  /// Sets the sum of a unique key, in the order of its members.
  void add_up(std::size_t number, std::span<float> sum) const {
    std::ranges::fill(sum, 0);
    for (std::size_t at = members_.begins[number]; at < members_.begins[number + 1]; ++at) {
      std::size_t const key = members_.members[at], bag = bag_of_.empty() ? key : bag_of_[key];
      float const weight = weights_.empty() ? 1 : weights_[key];
      auto const value = values_.subspan(bag * dim_, dim_);
      for (std::size_t column = 0; column < dim_; ++column) sum[column] += weight * value[column];
    }
  }

 private:
  Members members_;
  std::span<float const> weights_;
  std::size_t dim_;
  std::span<float const> values_;
  std::vector<std::uint32_t> bag_of_;  ///< (keys) Where bags are given.
};

}  // namespace headway::embedding
