// SPDX-License-Identifier: Apache-2.0
#include "id_batches.hpp"

#include <algorithm>
#include <utility>

namespace headway::benchmarks {

namespace {

/// Bijection from counters to ids that look random: finaliser of SplitMix64 (Steele, Lea and Flood 2014).
std::uint64_t mixed(std::uint64_t counter) {
  std::uint64_t id = counter * 0x9e3779b97f4a7c15U;
  id = (id ^ (id >> 30)) * 0xbf58476d1ce4e5b9U;
  id = (id ^ (id >> 27)) * 0x94d049bb133111ebU;
  return id ^ (id >> 31);
}

}  // namespace

IdBatches::IdBatches(std::size_t batch, std::uint64_t seed)
    : random_(seed), num_made_(random_() >> 1), ids_(batch), new_ids_(batch), other_ids_(batch) {}

std::vector<std::uint64_t> IdBatches::make_new(std::size_t count) {
  std::vector<std::uint64_t> ids(count);
  for (auto& id : ids) id = mixed(++num_made_);
  return ids;
}

void IdBatches::set_known(std::vector<std::uint64_t> ids) {
  known_ = std::move(ids);
  next_known_ = 0;
  std::ranges::shuffle(known_, random_);
}

void IdBatches::add_known(std::span<std::uint64_t const> ids) {
  for (auto const id : ids) {
    known_.push_back(id);
    std::size_t const at = next_known_ + random_() % (known_.size() - next_known_);
    std::swap(known_[at], known_.back());
  }
}

IdBatch const& IdBatches::next(std::size_t num_known, std::size_t num_new) {
  if (next_known_ + num_known > known_.size()) {
    next_known_ = 0;
    std::ranges::shuffle(known_, random_);
  }
  auto const new_ids = make_new(num_new);
  batch_.is_new.assign(num_known + num_new, 0);
  std::fill_n(batch_.is_new.begin(), num_new, 1);
  std::ranges::shuffle(batch_.is_new, random_);
  batch_.ids.clear();
  auto next_new = new_ids.begin();
  for (auto const is_new : batch_.is_new) batch_.ids.push_back(is_new != 0 ? *next_new++ : known_[next_known_++]);
  batch_.device_ids = ids_.set(batch_.ids);
  batch_.device_new_ids = new_ids_.set(new_ids);
  return batch_;
}

}  // namespace headway::benchmarks
