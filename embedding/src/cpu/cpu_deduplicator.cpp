// Deduplication of a batch on the CPU, with exact counts.
//
// Idea: the batch is sorted by stripe, so all duplicates of a key are in one stripe and meet in one thread. Three
// passes: (1) find_firsts: each stripe finds the first occurrence of each of its keys in a hash table of positions, and
// counts the occurrences. (2) number_firsts: ranges of the batch number their first occurrences; a prefix sum over the
// ranges makes the numbering that of the whole batch. (3) fill_members: each stripe writes the inverse indices and the
// CSR map.
//
// Example: ids 7 9 7 7 5. First occurrences: positions 0, 1 and 4, with 3, 1 and 1 occurrences.
//   ids = 7 9 5, numbers (inverse indices) = 0 1 0 0 2, begins (CSR offsets) = 0 3 4 5, members = 0 2 3 1 4.
//
// Invariants: unique keys are in the order of their first occurrence, members of a key ascend. So neither depends on
//   the number of threads, and sums over members are taken in the order of the batch.
//   Counts are exact: the sum of Keys::counts, at most 2^32 - 1, or the number of occurrences.
// Complexity: O(keys) expected. The hash tables (linear probing, load below 1/2) take 8 to 16 bytes for each key.

#include "cpu/cpu_deduplicator.hpp"

#include "cpu/member_sums.hpp"
#include "expect_batch.hpp"
#include "headway/comm/status.hpp"
#include "headway/kernels/vector_kernels.hpp"
#include "saturating_sum.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <string>

namespace headway::embedding {

namespace {

void expect_complete(Keys const& keys) {
  comm::expects(keys.tables.empty() || keys.tables.size() == keys.size(), "not one table for each key");
  comm::expects(keys.counts.empty() || keys.counts.size() == keys.size(), "not one count for each key");
  comm::expects(keys.size() < std::numeric_limits<std::uint32_t>::max(), "a batch has less than 2^32 keys");
}

/// Values of each unique key, `of_unique / num_unique`. @throws comm::UsageError unless each bag has as many
std::size_t dim_of(std::size_t num_bags, std::size_t of_bags, std::size_t num_unique, std::size_t of_unique) {
  std::size_t const dim = num_unique == 0 ? (num_bags == 0 ? 0 : of_bags / num_bags) : of_unique / num_unique;
  comm::expects(of_bags == num_bags * dim && of_unique == num_unique * dim,
                std::to_string(of_bags) + " values of " + std::to_string(num_bags) + " bags, and " +
                    std::to_string(of_unique) + " of " + std::to_string(num_unique) + " unique keys");
  return dim;
}

}  // namespace

std::unique_ptr<Deduplicator> make_cpu_deduplicator(std::shared_ptr<WorkerPool> workers) {
  return std::make_unique<CpuDeduplicator>(workers ? std::move(workers) : make_workers(1));
}

UniqueKeys take_as_unique(Keys const& keys) {
  expect_complete(keys);
  UniqueKeys unique{.ids = {keys.ids.begin(), keys.ids.end()},
                    .tables = {keys.tables.begin(), keys.tables.end()},
                    .table = keys.table,
                    .counts = {keys.counts.begin(), keys.counts.end()},
                    .numbers = std::vector<std::uint32_t>(keys.size()),
                    .members = {},
                    .begins = std::vector<std::uint32_t>(keys.size() + 1)};
  if (keys.counts.empty()) unique.counts.assign(keys.size(), 1);
  std::iota(unique.numbers.begin(), unique.numbers.end(), 0);
  std::iota(unique.begins.begin(), unique.begins.end(), 0);
  unique.members = unique.numbers;
  return unique;
}

UniqueKeys reorder(UniqueKeys const& unique, std::span<std::uint32_t const> order) {
  std::size_t const size = unique.size();
  comm::expects(order.size() == size, "not one place in the order for each unique key");
  UniqueKeys reordered{.ids = std::vector<std::uint64_t>(size),
                       .tables = std::vector<std::uint32_t>(unique.tables.size()),
                       .table = unique.table,
                       .counts = std::vector<std::uint32_t>(size),
                       .numbers = std::vector<std::uint32_t>(unique.numbers.size()),
                       .members = {},
                       .begins = std::vector<std::uint32_t>(size + 1)};
  reordered.members.reserve(unique.members.size());
  std::vector<bool> is_there(size);
  for (std::size_t number = 0; number < size; ++number) {
    std::uint32_t const from = order[number];
    comm::expects(from < size && !is_there[from], "a unique key is not in the order, or twice");
    is_there[from] = true;
    reordered.ids[number] = unique.ids[from];
    if (!unique.tables.empty()) reordered.tables[number] = unique.tables[from];
    reordered.counts[number] = unique.counts[from];
    for (std::size_t at = unique.begins[from]; at < unique.begins[from + 1]; ++at) {
      reordered.members.push_back(unique.members[at]);
      reordered.numbers[unique.members[at]] = static_cast<std::uint32_t>(number);
    }
    reordered.begins[number + 1] = static_cast<std::uint32_t>(reordered.members.size());
  }
  return reordered;
}

UniqueKeys CpuDeduplicator::deduplicate(Keys const& keys) {
  expect_complete(keys);
  std::lock_guard const lock(mutex_);
  batch_.sort(keys, stripe_map_, *workers_);
  first_of_.resize(keys.size());
  numbers_.assign(keys.size(), 0);
  batch_.for_each_stripe(*workers_, [&](std::size_t stripe) { find_firsts(keys, stripe); });
  auto unique = number_firsts(keys);
  batch_.for_each_stripe(*workers_, [&](std::size_t stripe) { fill_members(unique, keys, stripe); });
  return unique;
}

void CpuDeduplicator::find_firsts(Keys const& keys, std::size_t stripe) {
  auto const own = batch_.of_stripe(stripe);
  auto& slots = slots_[stripe];
  std::size_t const mask = std::bit_ceil(2 * own.size() + 1) - 1;
  slots.assign(mask + 1, 0);
  for (std::size_t const i : own) {
    // Linear probing. A slot holds a position plus 1; 0 is free.
    std::size_t at = batch_.hash(i).low & mask;
    while (slots[at] != 0 && keys[slots[at] - 1] != keys[i]) at = (at + 1) & mask;
    if (slots[at] == 0) slots[at] = static_cast<std::uint32_t>(i + 1);
    first_of_[i] = slots[at] - 1;
    ++numbers_[first_of_[i]];
  }
}

UniqueKeys CpuDeduplicator::number_firsts(Keys const& keys) {
  range_begins_.assign(WorkerPool::num_ranges(keys.size()) + 1, 0);
  workers_->in_ranges(keys.size(), [&](std::size_t range, std::size_t first, std::size_t end) {
    for (std::size_t i = first; i < end; ++i) range_begins_[range + 1] += numbers_[i] != 0 ? 1 : 0;
  });
  std::partial_sum(range_begins_.begin(), range_begins_.end(), range_begins_.begin());

  std::size_t const size = range_begins_.back();
  UniqueKeys unique{.ids = std::vector<std::uint64_t>(size),
                    .tables = std::vector<std::uint32_t>(keys.tables.empty() ? 0 : size),
                    .table = keys.table,
                    .counts = std::vector<std::uint32_t>(size),
                    .numbers = std::vector<std::uint32_t>(keys.size()),
                    .members = std::vector<std::uint32_t>(keys.size()),
                    .begins = std::vector<std::uint32_t>(size + 1)};
  workers_->in_ranges(keys.size(), [&](std::size_t range, std::size_t first, std::size_t end) {
    for (std::size_t i = first, number = range_begins_[range]; i < end; ++i) {
      if (numbers_[i] == 0) continue;
      unique.ids[number] = keys.ids[i];
      if (!keys.tables.empty()) unique.tables[number] = keys.tables[i];
      unique.begins[number + 1] = numbers_[i];
      numbers_[i] = static_cast<std::uint32_t>(number++);
    }
  });
  std::partial_sum(unique.begins.begin(), unique.begins.end(), unique.begins.begin());
  return unique;
}

void CpuDeduplicator::fill_members(UniqueKeys& unique, Keys const& keys, std::size_t stripe) {
  for (std::size_t const i : batch_.of_stripe(stripe)) {
    std::uint32_t const number = numbers_[first_of_[i]];
    unique.numbers[i] = number;
    // Until the end, counts[number] is the number of members written so far. It ends as the number of occurrences.
    unique.members[unique.begins[number] + unique.counts[number]++] = static_cast<std::uint32_t>(i);
  }
  if (keys.counts.empty()) return;
  // The batch has counts: replace the number of occurrences by their sum.
  for (std::size_t const i : batch_.of_stripe(stripe)) {
    if (first_of_[i] == i) unique.counts[unique.numbers[i]] = 0;
    auto& count = unique.counts[unique.numbers[i]];
    count = saturating_sum(count, keys.counts[i]);
  }
}

void CpuDeduplicator::hand_out(UniqueKeys const& unique, Bags const& bags, std::span<float const> values,
                               std::span<float> out) {
  std::size_t const num_bags = count_bags_on_host(unique.numbers.size(), bags);
  std::size_t const dim = dim_of(num_bags, out.size(), unique.size(), values.size());
  std::lock_guard const lock(mutex_);
  auto const& vector_kernels = kernels::fastest_vector_kernels();
  auto const value_of = [&](std::size_t key) { return values.subspan(unique.numbers[key] * dim, dim); };
  std::size_t const bag_bytes = (unique.numbers.size() / (num_bags + 1) + 1) * dim * sizeof(float);
  workers_->in_ranges_of(num_bags, bag_bytes, [&](std::size_t first, std::size_t end) {
    for (std::size_t bag = first; bag < end; ++bag) {
      auto const sum = out.subspan(bag * dim, dim);
      if (bags.offsets.empty() && bags.weights.empty()) {
        std::ranges::copy(value_of(bag), sum.begin());
        continue;
      }
      std::ranges::fill(sum, 0);
      auto const begin = bags.offsets.empty() ? bag : static_cast<std::size_t>(bags.offsets[bag]);
      auto const after = bags.offsets.empty() ? bag + 1 : static_cast<std::size_t>(bags.offsets[bag + 1]);
      for (std::size_t key = begin; key < after; ++key) {
        auto const* const value = value_of(key).data();
        vector_kernels.add(dim, 1, &value, bags.weights.empty() ? nullptr : &bags.weights[key], sum.data());
      }
    }
  });
}

void CpuDeduplicator::add_up(UniqueKeys const& unique, Bags const& bags, std::span<float const> values,
                             std::span<float> sums) {
  std::size_t const num_bags = count_bags_on_host(unique.numbers.size(), bags);
  std::size_t const dim = dim_of(num_bags, values.size(), unique.size(), sums.size());
  std::lock_guard const lock(mutex_);
  MemberSums const member_sums(unique.of_keys(), bags, dim, values, *workers_);
  workers_->in_ranges_of(unique.size(), dim * sizeof(float), [&](std::size_t first, std::size_t end) {
    for (std::size_t number = first; number < end; ++number) {
      member_sums.add_up(number, sums.subspan(number * dim, dim));
    }
  });
}

}  // namespace headway::embedding
