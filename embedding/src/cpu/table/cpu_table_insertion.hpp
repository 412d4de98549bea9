// SPDX-License-Identifier: Apache-2.0

// The loop over the keys of an insertion. cpu_table_insertion.cpp explains the algorithm.
#pragma once

#include "cpu/table/cpu_table.hpp"
#include "expect_batch.hpp"
#include "saturating_sum.hpp"

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
    Key const key = keys[i];
    bool const is_refused = !is_refused_.empty() && is_refused_[i];
    auto status = KeyStatus::kFound;
    // The function runs only if the key is absent. It decides what the new slot holds; kEmpty inserts nothing.
    auto* const word = stripe.index.find_or_insert(key, hash, [&] {
      if (is_refused) return RowWord::kEmpty;
      if (lookups.count(i) < lookups.min_count) {
        ++stripe.num_pending;
        return pending_word(0);
      }
      status = KeyStatus::kInserted;
      return make_row(stripe, key, lookups.count(i));
    });
    // Either a refused new key, a pending key that may reach min_count now, or a key that had a row.
    if (word == nullptr) {
      status = KeyStatus::kNoRoom;
    } else if (is_pending(*word)) {
      std::uint32_t const count = saturating_sum(pending_count_of(*word), lookups.count(i));
      status = count < lookups.min_count ? KeyStatus::kPending : is_refused ? KeyStatus::kNoRoom : KeyStatus::kInserted;
      *word = status == KeyStatus::kInserted ? make_row(stripe, key, count) : pending_word(count);
      if (status == KeyStatus::kInserted) --stripe.num_pending;
    } else if (status == KeyStatus::kFound) {
      look_up(stripe, key, *word, lookups.count(i));
    }
    if (status == KeyStatus::kNoRoom) ++stripe.statistics.refused;
    if (!statuses.empty()) statuses[i] = status;
    visit(i, word == nullptr ? RowId::kNone : row_of(*word));
  });
}

}  // namespace headway::embedding
