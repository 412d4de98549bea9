#include "cpu/cpu_deduplicator.hpp"

#include "headway/comm/status.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>

namespace headway::embedding {

std::unique_ptr<Deduplicator> make_cpu_deduplicator(int num_threads) {
  return std::make_unique<CpuDeduplicator>(num_threads);
}

UniqueKeys const& CpuDeduplicator::deduplicate(Keys const& keys) {
  comm::expects(keys.tables.empty() || keys.tables.size() == keys.size(), "not one table for each key");
  comm::expects(keys.size() <= std::numeric_limits<std::uint32_t>::max(), "a batch has less than 2^32 keys");
  is_complete_ = false;
  batch_.sort(keys, stripe_map_, workers_);
  counts_.assign(keys.size(), 0);
  unique_.numbers.resize(keys.size());
  batch_.for_each_stripe(workers_, [&](std::size_t stripe) { find_firsts(keys, stripe); });
  number_firsts(keys);
  is_complete_ = true;
  return unique_;
}

void CpuDeduplicator::find_firsts(Keys const& keys, std::size_t stripe) {
  auto const own = batch_.of_stripe(stripe);
  auto& slots = slots_[stripe];
  std::size_t const mask = std::bit_ceil(2 * own.size() + 1) - 1;
  slots.assign(mask + 1, 0);
  for (std::size_t const i : own) {
    std::size_t at = batch_.hash(i).low & mask;
    while (slots[at] != 0 && keys[slots[at] - 1] != keys[i]) at = (at + 1) & mask;
    if (slots[at] == 0) slots[at] = static_cast<std::uint32_t>(i + 1);
    std::uint32_t const first = slots[at] - 1;
    unique_.numbers[i] = first;
    ++counts_[first];
  }
}

void CpuDeduplicator::number_firsts(Keys const& keys) {
  range_begins_.assign(WorkerPool::num_ranges(keys.size()) + 1, 0);
  workers_.in_ranges(keys.size(), [&](std::size_t range, std::size_t first, std::size_t end) {
    for (std::size_t i = first; i < end; ++i) range_begins_[range + 1] += counts_[i] != 0 ? 1 : 0;
  });
  for (std::size_t range = 1; range < range_begins_.size(); ++range) range_begins_[range] += range_begins_[range - 1];

  std::size_t const size = range_begins_.back();
  unique_.table = keys.table;
  unique_.ids.resize(size);
  unique_.tables.resize(keys.tables.empty() ? 0 : size);
  unique_.counts.resize(size);
  firsts_.resize(size);
  workers_.in_ranges(keys.size(), [&](std::size_t range, std::size_t first, std::size_t end) {
    for (std::size_t i = first, number = range_begins_[range]; i < end; ++i) {
      if (counts_[i] == 0) continue;
      unique_.ids[number] = keys.ids[i];
      if (!keys.tables.empty()) unique_.tables[number] = keys.tables[i];
      unique_.counts[number] = counts_[i];
      firsts_[number] = static_cast<std::uint32_t>(i);
      counts_[i] = static_cast<std::uint32_t>(number++);  // From here on it is the number of the first.
    }
  });
  workers_.in_ranges(keys.size(), [&](std::size_t /*range*/, std::size_t first, std::size_t end) {
    for (std::size_t i = first; i < end; ++i) unique_.numbers[i] = counts_[unique_.numbers[i]];
  });
}

void CpuDeduplicator::add_up(std::span<float const> values, std::span<float> sums) const {
  std::size_t const dim = expect_same_dim(values.size(), sums.size());
  batch_.for_each_stripe(workers_, [&](std::size_t stripe) {
    for (std::size_t const i : batch_.of_stripe(stripe)) {
      float* const sum = sums.data() + unique_.numbers[i] * dim;
      float const* const value = values.data() + i * dim;
      if (firsts_[unique_.numbers[i]] == i) {
        std::copy_n(value, dim, sum);
      } else {
        for (std::size_t column = 0; column < dim; ++column) sum[column] += value[column];
      }
    }
  });
}

void CpuDeduplicator::hand_out(std::span<float const> values, std::span<float> out) const {
  std::size_t const dim = expect_same_dim(out.size(), values.size());
  workers_.in_ranges(batch_.size(), [&](std::size_t /*range*/, std::size_t first, std::size_t end) {
    for (std::size_t i = first; i < end; ++i) {
      std::copy_n(values.data() + unique_.numbers[i] * dim, dim, out.data() + i * dim);
    }
  });
}

std::size_t CpuDeduplicator::expect_same_dim(std::size_t of_batch, std::size_t of_unique) const {
  comm::expects(is_complete_, "no batch was deduplicated");
  std::size_t const dim = batch_.size() == 0 ? 0 : of_batch / batch_.size();
  comm::expects(of_batch == batch_.size() * dim && of_unique == unique_.size() * dim,
                std::to_string(of_batch) + " values of " + std::to_string(batch_.size()) + " keys, and " +
                    std::to_string(of_unique) + " of " + std::to_string(unique_.size()) + " unique ones");
  return dim;
}

}  // namespace headway::embedding
