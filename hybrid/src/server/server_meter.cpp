// SPDX-License-Identifier: Apache-2.0

#include "server/server_meter.hpp"

#include <algorithm>
#include <string>

namespace headway::hybrid {

void ServerMeter::set_tables(std::span<embedding::MergedTable const> merged) {
  std::lock_guard const lock(mutex_);
  shares_.clear();
  index_of_.clear();
  for (auto const& each : merged) {
    auto& shares = shares_.emplace_back();
    auto& index_of = index_of_.emplace_back();
    for (std::size_t i = 0; i < each.tables.size(); ++i) {
      index_of.emplace(each.tables[i], i);
      auto& share = shares.emplace_back(Share{.id = each.tables[i]});
      share.name = i < each.names.size() ? each.names[i] : "table " + std::to_string(each.tables[i]);
    }
  }
}

void ServerMeter::begin_generation(std::uint32_t num_workers) {
  std::lock_guard const lock(mutex_);
  waits_.resize(std::max<std::size_t>(waits_.size(), num_workers));
}

void ServerMeter::end_generation(std::uint64_t num_lost) {
  std::lock_guard const lock(mutex_);
  lost_[static_cast<std::size_t>(LossCause::kGeneration)] += num_lost;
  holds_.clear();
}

ServerMeter::Count ServerMeter::count(DecodedLookup const& lookup) const {
  Count count{.num_samples = lookup.num_samples};
  if (lookup.num_samples == 0) return count;
  for (std::size_t merged = 0; merged < shares_.size(); ++merged) {
    auto const& keys = lookup.tables[merged];
    auto& top_lookups = count.top_lookups.emplace_back(shares_[merged].size());
    std::size_t index = 0;
    for (std::size_t i = 0; i < keys.ids.size(); ++i) {
      if (keys.tables[i] != shares_[merged][index].id) {  // Keys of a table are often adjacent.
        auto const found = index_of_[merged].find(keys.tables[i]);
        if (found == index_of_[merged].end()) continue;
        index = found->second;
      }
      top_lookups[index] = std::max(top_lookups[index], keys.counts[i]);
    }
  }
  return count;
}

void ServerMeter::add(Count const& lookup) {
  std::lock_guard const lock(mutex_);
  num_samples_ += lookup.num_samples;
  for (std::size_t merged = 0; merged < lookup.top_lookups.size(); ++merged) {
    for (std::size_t i = 0; i < shares_[merged].size(); ++i) {
      shares_[merged][i].top_lookups += std::min<std::uint64_t>(lookup.top_lookups[merged][i], lookup.num_samples);
    }
  }
}

void ServerMeter::count_loss(LossCause cause) {
  std::lock_guard const lock(mutex_);
  ++lost_.at(static_cast<std::size_t>(cause));
}

void ServerMeter::begin_hold(BatchKey batch, Clock::time_point now) {
  std::lock_guard const lock(mutex_);
  holds_.insert_or_assign(batch, now);
}

void ServerMeter::end_hold(BatchKey batch, std::optional<std::uint32_t> by_worker, Clock::time_point now) {
  std::lock_guard const lock(mutex_);
  auto const found = holds_.find(batch);
  if (found == holds_.end()) return;
  if (by_worker && *by_worker < waits_.size()) {
    auto const waited = std::chrono::duration_cast<std::chrono::nanoseconds>(now - found->second);
    ++waits_[*by_worker].num_lookups;
    waits_[*by_worker].nanoseconds += static_cast<std::uint64_t>(std::max<std::int64_t>(0, waited.count()));
  }
  holds_.erase(found);
}

void ServerMeter::report(ServerStatus& status) const {
  std::lock_guard const lock(mutex_);
  status.samples = num_samples_;
  status.lost.assign(lost_.begin(), lost_.end());
  status.waits = waits_;
  for (std::size_t merged = 0; merged < std::min(shares_.size(), status.tables.size()); ++merged) {
    for (auto const& each : shares_[merged]) {
      status.tables[merged].shares.push_back(
          {.table = each.name, .num_samples = num_samples_, .top_lookups = each.top_lookups});
    }
  }
}

}  // namespace headway::hybrid
