// SPDX-License-Identifier: Apache-2.0

// Deduplication of a batch on the CPU, with exact counts.
//
// Idea: the batch is sorted by stripe, one of 64 classes of key hashes (stripe_map.hpp). So all duplicates of a key are
// in one stripe and meet in one thread. The members of a unique key are its positions in the batch. Three
// passes: (1) find_firsts: each stripe finds the first occurrence of each of its keys in a hash table of positions, and
// counts the occurrences. (2) index_firsts: ranges of the batch number their first occurrences; a prefix sum over the
// ranges makes the numbering that of the whole batch. (3) fill_csr: each stripe writes the inverse indices and the
// CSR map.
//
// Example: ids 7 9 7 7 5. First occurrences: positions 0, 1 and 4, with 3, 1 and 1 occurrences.
//   ids = 7 9 5, inverse_indices = 0 1 0 0 2, csr_offsets = 0 3 4 5, csr_indices = 0 2 3 1 4.
//
// Invariants: unique keys are in the order of their first occurrence, members of a key ascend. So neither depends on
//   the number of threads, and sums over members are taken in the order of the batch.
//   Counts are exact: the sum of Keys::counts, at most 2^32 - 1, or the number of occurrences.
// Complexity: O(keys) expected. The hash tables (linear probing, load below 1/2) take 8 to 16 bytes for each key.

#include "cpu/deduplication/cpu_deduplicator.hpp"

#include "cpu/deduplication/segmented_sum.hpp"
#include "cpu/rows/sum_vectors.hpp"
#include "expect_batch.hpp"
#include "headway/base/status.hpp"
#include "headway/kernels/vector_kernels.hpp"
#include "saturating_sum.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <numeric>
#include <string>

namespace headway::embedding {

namespace {

void expect_complete(Keys const& keys) {
  base::expects(keys.tables.empty() || keys.tables.size() == keys.size(), "not one table for each key");
  base::expects(keys.counts.empty() || keys.counts.size() == keys.size(), "not one count for each key");
  base::expects(keys.size() < std::numeric_limits<std::uint32_t>::max(), "a batch has less than 2^32 keys");
}

/// Values of each unique key, from the number of values of all bags (of_bags) and of all unique keys (of_unique).
/// @throws base::UsageError unless each bag has as many
std::size_t dim_of(std::size_t num_bags, std::size_t of_bags, std::size_t num_unique, std::size_t of_unique) {
  std::size_t const dim = num_unique == 0 ? (num_bags == 0 ? 0 : of_bags / num_bags) : of_unique / num_unique;
  base::expects(of_bags == num_bags * dim && of_unique == num_unique * dim,
                std::to_string(of_bags) + " values of " + std::to_string(num_bags) + " bags, and " +
                    std::to_string(of_unique) + " of " + std::to_string(num_unique) + " unique keys");
  return dim;
}

}  // namespace

std::unique_ptr<Deduplicator> make_cpu_deduplicator(std::shared_ptr<base::ThreadPool> thread_pool) {
  return std::make_unique<CpuDeduplicator>(thread_pool ? std::move(thread_pool)
                                                       : std::make_shared<base::ThreadPool>(1));
}

UniqueKeys from_unique(Keys const& keys) {
  expect_complete(keys);
  UniqueKeys unique{.ids = {keys.ids.begin(), keys.ids.end()},
                    .tables = {keys.tables.begin(), keys.tables.end()},
                    .table = keys.table,
                    .counts = {keys.counts.begin(), keys.counts.end()},
                    .inverse_indices = std::vector<std::uint32_t>(keys.size()),
                    .csr_indices = {},
                    .csr_offsets = std::vector<std::uint32_t>(keys.size() + 1)};
  if (keys.counts.empty()) unique.counts.assign(keys.size(), 1);
  std::iota(unique.inverse_indices.begin(), unique.inverse_indices.end(), 0);
  std::iota(unique.csr_offsets.begin(), unique.csr_offsets.end(), 0);
  unique.csr_indices = unique.inverse_indices;
  return unique;
}

UniqueKeys reorder(UniqueKeys const& unique, std::span<std::uint32_t const> order) {
  std::size_t const size = unique.size();
  base::expects(order.size() == size, "not one place in the order for each unique key");
  UniqueKeys reordered{.ids = std::vector<std::uint64_t>(size),
                       .tables = std::vector<std::uint32_t>(unique.tables.size()),
                       .table = unique.table,
                       .counts = std::vector<std::uint32_t>(size),
                       .inverse_indices = std::vector<std::uint32_t>(unique.inverse_indices.size()),
                       .csr_indices = {},
                       .csr_offsets = std::vector<std::uint32_t>(size + 1)};
  reordered.csr_indices.reserve(unique.csr_indices.size());
  std::vector<bool> is_there(size);
  for (std::size_t index = 0; index < size; ++index) {
    std::uint32_t const from = order[index];
    base::expects(from < size && !is_there[from], "a unique key is not in the order, or twice");
    is_there[from] = true;
    reordered.ids[index] = unique.ids[from];
    if (!unique.tables.empty()) reordered.tables[index] = unique.tables[from];
    reordered.counts[index] = unique.counts[from];
    for (std::size_t at = unique.csr_offsets[from]; at < unique.csr_offsets[from + 1]; ++at) {
      reordered.csr_indices.push_back(unique.csr_indices[at]);
      reordered.inverse_indices[unique.csr_indices[at]] = static_cast<std::uint32_t>(index);
    }
    reordered.csr_offsets[index + 1] = static_cast<std::uint32_t>(reordered.csr_indices.size());
  }
  return reordered;
}

UniqueKeys CpuDeduplicator::deduplicate(Keys const& keys) {
  expect_complete(keys);
  std::lock_guard const lock(mutex_);
  batch_.sort(keys, stripe_map_, *thread_pool_);
  first_of_.resize(keys.size());
  unique_indices_.assign(keys.size(), 0);
  batch_.for_each_stripe(*thread_pool_, [&](std::size_t stripe) { find_firsts(keys, stripe); });
  auto unique = index_firsts(keys);
  batch_.for_each_stripe(*thread_pool_, [&](std::size_t stripe) { fill_csr(unique, keys, stripe); });
  return unique;
}

void CpuDeduplicator::find_firsts(Keys const& keys, std::size_t stripe) {
  auto const own = batch_.of_stripe(stripe);
  auto& slots = slots_[stripe];
  std::size_t const mask = std::bit_ceil(2 * own.size() + 1) - 1;
  slots.assign(mask + 1, 0);
  // `own` ascends, so the first position that reaches a free slot is the first occurrence of its key.
  for (std::size_t const i : own) {
    // Linear probing. A slot holds a position plus 1; 0 is free.
    std::size_t at = batch_.hash(i).low & mask;
    while (slots[at] != 0 && keys[slots[at] - 1] != keys[i]) at = (at + 1) & mask;
    if (slots[at] == 0) slots[at] = static_cast<std::uint32_t>(i + 1);
    first_of_[i] = slots[at] - 1;
    ++unique_indices_[first_of_[i]];
  }
}

UniqueKeys CpuDeduplicator::index_firsts(Keys const& keys) {
  // A position is the first occurrence of its key if it has a number of occurrences; all others have 0.
  range_begins_.assign(base::ThreadPool::num_ranges(keys.size()) + 1, 0);
  thread_pool_->in_ranges(keys.size(), [&](std::size_t range, std::size_t first, std::size_t end) {
    for (std::size_t i = first; i < end; ++i) range_begins_[range + 1] += unique_indices_[i] != 0 ? 1 : 0;
  });
  std::partial_sum(range_begins_.begin(), range_begins_.end(), range_begins_.begin());

  std::size_t const size = range_begins_.back();
  UniqueKeys unique{.ids = std::vector<std::uint64_t>(size),
                    .tables = std::vector<std::uint32_t>(keys.tables.empty() ? 0 : size),
                    .table = keys.table,
                    .counts = std::vector<std::uint32_t>(size),
                    .inverse_indices = std::vector<std::uint32_t>(keys.size()),
                    .csr_indices = std::vector<std::uint32_t>(keys.size()),
                    .csr_offsets = std::vector<std::uint32_t>(size + 1)};
  thread_pool_->in_ranges(keys.size(), [&](std::size_t range, std::size_t first, std::size_t end) {
    for (std::size_t i = first, index = range_begins_[range]; i < end; ++i) {
      if (unique_indices_[i] == 0) continue;
      unique.ids[index] = keys.ids[i];
      if (!keys.tables.empty()) unique.tables[index] = keys.tables[i];
      unique.csr_offsets[index + 1] = unique_indices_[i];
      // From here on the entry of a first occurrence is its unique index; its number of occurrences is in csr_offsets.
      unique_indices_[i] = static_cast<std::uint32_t>(index++);
    }
  });
  // Numbers of members become offsets.
  std::partial_sum(unique.csr_offsets.begin(), unique.csr_offsets.end(), unique.csr_offsets.begin());
  return unique;
}

void CpuDeduplicator::fill_csr(UniqueKeys& unique, Keys const& keys, std::size_t stripe) {
  for (std::size_t const i : batch_.of_stripe(stripe)) {
    std::uint32_t const index = unique_indices_[first_of_[i]];
    unique.inverse_indices[i] = index;
    // Until the end, counts[index] is the number of members written so far. It ends as the number of occurrences.
    unique.csr_indices[unique.csr_offsets[index] + unique.counts[index]++] = static_cast<std::uint32_t>(i);
  }
  if (keys.counts.empty()) return;
  // The batch has counts: replace the number of occurrences by their sum.
  for (std::size_t const i : batch_.of_stripe(stripe)) {
    if (first_of_[i] == i) unique.counts[unique.inverse_indices[i]] = 0;
    auto& count = unique.counts[unique.inverse_indices[i]];
    count = saturating_sum(count, keys.counts[i]);
  }
}

void CpuDeduplicator::expand(UniqueKeys const& unique, Bags const& bags, std::span<float const> values,
                             std::span<float> out) {
  std::size_t const num_bags = count_bags_on_host(unique.inverse_indices.size(), bags);
  std::size_t const dim = dim_of(num_bags, out.size(), unique.size(), values.size());
  std::lock_guard const lock(mutex_);
  auto const& vector_kernels = kernels::fastest_vector_kernels();
  auto const value_of = [&](std::size_t key) { return values.subspan(unique.inverse_indices[key] * dim, dim); };
  constexpr std::size_t kValuesAtOnce = 16;  // Values added per call of the kernel.
  std::size_t const bag_bytes = (unique.inverse_indices.size() / (num_bags + 1) + 1) * dim * sizeof(float);
  thread_pool_->in_ranges_of(num_bags, bag_bytes, [&](std::size_t first, std::size_t last) {
    std::array<float const*, kValuesAtOnce> members;
    auto const locate = [&](std::size_t key, std::size_t count) -> SumTerms {
      for (std::size_t i = 0; i < count; ++i) members[i] = value_of(key + i).data();
      return {.vectors = members.data(), .weights = bags.weights.empty() ? nullptr : bags.weights.data() + key};
    };
    for (std::size_t bag = first; bag < last; ++bag) {
      auto const sum = out.subspan(bag * dim, dim);
      if (bags.offsets.empty() && bags.weights.empty()) {
        std::ranges::copy(value_of(bag), sum.begin());
        continue;
      }
      auto const begin = bags.offsets.empty() ? bag : static_cast<std::size_t>(bags.offsets[bag]);
      auto const end = bags.offsets.empty() ? bag + 1 : static_cast<std::size_t>(bags.offsets[bag + 1]);
      sum_vectors<kValuesAtOnce>(vector_kernels, begin, end, locate, sum);
    }
  });
}

void CpuDeduplicator::reduce(UniqueKeys const& unique, Bags const& bags, std::span<float const> values,
                             std::span<float> sums) {
  std::size_t const num_bags = count_bags_on_host(unique.inverse_indices.size(), bags);
  std::size_t const dim = dim_of(num_bags, values.size(), unique.size(), sums.size());
  std::lock_guard const lock(mutex_);
  CpuSegmentedSum const member_sums(unique.csr(), bags, dim, values, *thread_pool_);
  thread_pool_->in_ranges_of(unique.size(), dim * sizeof(float), [&](std::size_t first, std::size_t end) {
    for (std::size_t index = first; index < end; ++index) {
      member_sums.reduce(index, sums.subspan(index * dim, dim));
    }
  });
}

}  // namespace headway::embedding
