// SPDX-License-Identifier: Apache-2.0

// The loop over the keys of an insertion. cpu_table_insertion.cpp explains the algorithm.
#pragma once

#include "cpu/table/cpu_table.hpp"
#include "expect_batch.hpp"

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

namespace headway::embedding {

template <class Announce, class Visit>
void CpuTable::insert(Keys const& keys, Lookups const& lookups, std::span<KeyStatus> statuses, Announce announce,
                      Visit visit) {
  expect_one_each(keys, statuses.empty() ? keys.size() : statuses.size(), "statuses");
  std::lock_guard const lock(mutex_);
  insert_locked(keys, lookups, statuses, announce, visit);
}

template <class Announce, class Visit>
void CpuTable::insert_locked(Keys const& keys, Lookups const& lookups, std::span<KeyStatus> statuses, Announce announce,
                             Visit visit) {
  batch_.sort(keys, stripe_map_, *thread_pool_);
  if (options_.time_to_live > 0 && lookups.is_limited) remove_expired_of(keys);
  make_room(keys, lookups);
  in_stripes(announce, [&](Stripe& stripe, std::size_t i, Hash hash) {
    auto const [row, status] = visit_key(stripe, keys[i], hash, lookups, i, !is_refused_.empty() && is_refused_[i]);
    if (status == KeyStatus::kNoRoom) ++stripe.statistics.refused;
    if (!statuses.empty()) statuses[i] = status;
    visit(i, row);
  });
}

}  // namespace headway::embedding
