// SPDX-License-Identifier: Apache-2.0

// CPU table: construction, sizes and statistics. The calls of the table are in the other cpu_table_*.cpp.
//
// Counters are kept per stripe, by the thread that works on the stripe, and summed up when somebody asks. So no
// counter is shared between threads, and the sums are exact whenever no change is under way (mutex_).

#include "cpu/table/cpu_table.hpp"

#include "headway/base/status.hpp"
#include "table_options.hpp"

#include <mutex>
#include <string>
#include <utility>

namespace headway::embedding {

std::unique_ptr<Table> make_cpu_table(TableOptions const& options) { return std::make_unique<CpuTable>(options); }
std::unique_ptr<ConcurrentTable> make_concurrent_table(TableOptions const& options) {
  return std::make_unique<CpuTable>(options);
}

CpuTable::CpuTable(TableOptions const& options)
    : options_(checked(options)),
      thread_pool_(options.thread_pool ? options.thread_pool : std::make_shared<base::ThreadPool>(1)),
      rows_(options.dim, kernels::RowOptimizer(options.optimizer)),
      stripes_(make_stripes()) {}

std::vector<CpuTable::Stripe> CpuTable::make_stripes() {
  std::vector<Stripe> stripes;
  stripes.reserve(StripeMap::kCount);
  for (std::size_t i = 0; i < StripeMap::kCount; ++i)
    stripes.emplace_back(segments_, rows_, options_.hot_count > 0 ? options_.dim : 0);
  return stripes;
}

std::size_t CpuTable::state_size() const {
  kernels::RowOptimizer const optimizer(options_.optimizer);
  return optimizer.state_size(options_.dim) + (optimizer.is_row_wise() ? 1 : 0);
}

TableSize CpuTable::size() const {
  std::shared_lock const lock(mutex_);
  std::lock_guard const alone(calls_);
  return size_locked();
}

TableSize CpuTable::size_locked() const {
  TableSize sum{.key_bytes = segments_.num_bytes(), .row_bytes = rows_.num_bytes()};
  for (auto const& stripe : stripes_) {
    sum.rows += stripe.num_rows;
    sum.cold_rows += stripe.num_cold;
    sum.pending += stripe.num_pending;
    sum.key_bytes += stripe.queue.num_bytes();
  }
  return sum;
}

TableStatistics CpuTable::statistics() const {
  std::shared_lock const lock(mutex_);
  std::lock_guard const alone(calls_);
  return statistics_locked();
}

TableStatistics CpuTable::statistics_locked() const {
  TableStatistics sum;
  for (auto const& stripe : stripes_) {
    auto const& part = stripe.statistics;
    sum.inserted += part.inserted;
    sum.erased += part.erased;
    sum.evicted += part.evicted;
    sum.expired += part.expired;
    sum.refused += part.refused;
    sum.forgotten += part.forgotten;
    sum.promoted += part.promoted;
    sum.demoted += part.demoted;
    sum.dropped_gradients += part.dropped_gradients;
  }
  return sum;
}

std::uint64_t CpuTable::generation() const {
  // Each of these counters grows when a row was removed or moved; their sum grows whenever one of them does.
  std::shared_lock const lock(mutex_);
  auto const counts = statistics_locked();
  return counts.erased + counts.evicted + counts.expired + counts.promoted + counts.demoted;
}

void CpuTable::clear() {
  std::lock_guard const lock(mutex_);
  // Make the new stripes first: if memory runs out, nothing has changed.
  auto fresh = make_stripes();
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    fresh[i].statistics = stripes_[i].statistics;
    fresh[i].statistics.erased += stripes_[i].num_rows;
    fresh[i].statistics.forgotten += stripes_[i].num_pending;
  }
  stripes_ = std::move(fresh);
  reset_queues();
  rows_.clear();
  segments_.trim();
}

void CpuTable::expect_row(RowId row) const {
  if (!rows_.has(row)) {
    throw base::UsageError("row " + std::to_string(static_cast<std::uint32_t>(row)) + " is not of this table");
  }
}

}  // namespace headway::embedding
