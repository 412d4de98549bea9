// SPDX-License-Identifier: Apache-2.0

// Fills all compared tables with the same ids and their initial embeddings. A table that evicts is filled first, and
// the others get only the ids that it has kept. charge() attributes changes of free device memory to one table.

#include "filled_tables.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace headway::benchmarks {

namespace {

/// Calls f with consecutive parts of `ids`, of at most `most` ids each.
template <class F>
void for_parts(std::span<std::uint64_t const> ids, std::size_t most, F f) {
  for (std::size_t first = 0; first < ids.size(); first += most) {
    f(ids.subspan(first, std::min(most, ids.size() - first)));
  }
}

}  // namespace

FilledTables::FilledTables(CudaTableSettings const& settings, cudaStream_t stream)
    : capacity_(settings.capacity),
      batch_(settings.batch),
      dim_(settings.dim),
      systems_(make_cuda_systems({.capacity = settings.capacity,
                                  .batch = settings.batch,
                                  .dim = settings.dim,
                                  .seed = settings.seed,
                                  .device = settings.device,
                                  .stream = stream})),
      batches_(settings.batch, settings.seed),
      embeddings_(settings.batch * settings.dim) {}

void FilledTables::fill(double load) {
  for (auto& each : systems_) charge(each, [&] { each.system->clear(); });
  auto const num_ids = static_cast<std::size_t>(load * static_cast<double>(capacity_));
  auto const first_to_fill =
      std::ranges::find_if(systems_, [](NamedCudaSystem const& each) { return each.system->evicts(); });
  std::vector<std::uint64_t> ids;
  if (first_to_fill == systems_.end()) {
    ids = batches_.make_new(num_ids);
  } else {
    charge(*first_to_fill, [&] { ids = fill_one_that_evicts(*first_to_fill->system, num_ids); });
  }
  for (auto& each : systems_) {
    if (each.system->evicts()) continue;
    charge(each, [&] { insert(*each.system, ids); });
    if (each.system->size() != ids.size()) throw std::runtime_error(each.name + " has not what it was given");
  }
  batches_.set_known(std::move(ids));
}

std::vector<std::uint64_t> FilledTables::fill_one_that_evicts(CudaTableSystem& system, std::size_t num_ids) {
  // Tolerated gap to `num_ids`, as a share of the capacity. HierarchicalKV's own benchmark uses the same.
  constexpr double kNearEnough = 0.001;
  auto const enough =
      num_ids - std::min(num_ids, static_cast<std::size_t>(kNearEnough * static_cast<double>(capacity_)));
  auto ids = batches_.make_new(num_ids);
  insert(system, ids);
  while (system.size() < enough) {
    auto const more = batches_.make_new(batch_);
    insert(system, more);
    ids.insert(ids.end(), more.begin(), more.end());
  }
  return select(system, ids, Presence::kThere);
}

void FilledTables::insert(CudaTableSystem& system, std::span<std::uint64_t const> ids) {
  for_parts(ids, batch_, [&](auto part) {
    auto const of_device = batches_.on_device(part);
    system.insert_or_assign(of_device, embeddings_of(of_device));
  });
}

std::vector<std::uint64_t> FilledTables::select(CudaTableSystem& system, std::span<std::uint64_t const> ids,
                                                Presence presence) {
  std::vector<std::uint64_t> selected;
  for_parts(ids, batch_, [&](auto part) {
    system.find_addresses(batches_.on_device(part));
    auto const found = system.found(part.size());
    for (std::size_t i = 0; i < part.size(); ++i) {
      if ((found[i] != 0) == (presence == Presence::kThere)) selected.push_back(part[i]);
    }
  });
  return selected;
}

void FilledTables::restore(NamedCudaSystem& system, IdBatch const& batch) {
  if (batch.device_new_ids.empty()) return;
  charge(system, [&] {
    system.system->erase(batch.device_new_ids);
    if (system.system->evicts()) {
      insert(*system.system, select(*system.system, batches_.known(), Presence::kAbsent));
    }
  });
}

IdBatch const& FilledTables::next_batch(double hit_rate) {
  auto const num_known = static_cast<std::size_t>(std::llround(hit_rate * static_cast<double>(batch_)));
  return batches_.next(num_known, batch_ - num_known);
}

std::span<float const> FilledTables::embeddings_of(std::span<std::uint64_t const> ids) {
  auto const giver = std::ranges::find_if(
      systems_, [](NamedCudaSystem const& each) { return each.system->gives_initial_embeddings(); });
  auto const embeddings = embeddings_.first(ids.size() * dim_);
  giver->system->find(ids, embeddings);
  return embeddings;
}

void FilledTables::charge(NamedCudaSystem& system, std::function<void()> const& call) const {
  auto const before = static_cast<std::int64_t>(free_device_bytes());
  call();
  system.device_bytes += before - static_cast<std::int64_t>(free_device_bytes());
}

}  // namespace headway::benchmarks
