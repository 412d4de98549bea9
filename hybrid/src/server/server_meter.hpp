// SPDX-License-Identifier: Apache-2.0

// Statistics of a parameter server: losses by cause, who waited for whom, and how common the commonest ids are.
//
// Share of the commonest id. The convergence of asynchronous embeddings depends on alpha, the largest probability that
// a sample holds one id (theorem 1 of Persia). For each table and batch the meter adds two numbers:
//
//   num_samples   samples of the batch, whether or not they have ids of the table
//   top_lookups   the most lookups that an id of the table has in this batch, and at most num_samples
//
// The estimate is the sum of top_lookups over the sum of num_samples. Example: batches of 4 samples, where id 7 occurs
// 3 times in the first one and id 9 twice in the second one: (3 + 2) / (4 + 4) = 0.625.
//
// It errs upwards. The commonest id may change from batch to batch, an id that repeats in a sample counts again, and a
// batch of B samples gives at least 1/B. A server sees its own ids only, so the alpha of a table is the largest one of
// all servers. No id is kept.
//
// Who waited for whom. A lookup that was held back has waited for the dense worker whose message completed the last
// missing step: its part or void notice, or in exact order its lookup.
//
// Complexity: O(K) for K keys of a lookup, outside the mutex. Thread-safe.

#pragma once

#include "headway/embedding/sharded_table.hpp"
#include "headway/hybrid/server_messages.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace headway::hybrid {

class ServerMeter {
 public:
  using Clock = std::chrono::steady_clock;
  using BatchKey = std::pair<std::uint64_t, std::uint32_t>;  ///< Step, worker.

  /// A lookup for the share of the commonest id.
  struct Count {
    std::uint64_t num_samples = 0;
    std::vector<std::vector<std::uint32_t>> top_lookups{};  ///< (merged tables) (tables)
  };

  /// Before all other calls.
  void set_tables(std::span<embedding::MergedTable const> merged);
  void begin_generation(std::uint32_t num_workers);
  /// @param num_lost batches that had not ended
  void end_generation(std::uint64_t num_lost);
  /// Counts a lookup, for add(). Calls run at the same time.
  [[nodiscard]] Count count(DecodedLookup const& lookup) const;
  void add(Count const& lookup);
  void count_loss(LossCause cause);
  void begin_hold(BatchKey batch, Clock::time_point now = Clock::now());
  /// The lookup was answered. @param by_worker whose message made it possible; none: it was refused, or nobody knows
  void end_hold(BatchKey batch, std::optional<std::uint32_t> by_worker, Clock::time_point now = Clock::now());
  /// Sets `samples`, `lost`, `waits` and the shares of tables. Lookups that are still held do not count.
  void report(ServerStatus& status) const;

 private:
  struct Share {
    std::uint32_t id = 0;  ///< The table's.
    std::uint64_t top_lookups = 0;
    std::string name{};
  };

  mutable std::mutex mutex_;
  std::vector<std::vector<Share>> shares_;                                ///< (merged tables)
  std::vector<std::unordered_map<std::uint32_t, std::size_t>> index_of_;  ///< (merged tables) Share of a table.
  std::uint64_t num_samples_ = 0;
  std::array<std::uint64_t, kNumLossCauses> lost_{};
  std::vector<WorkerWait> waits_;  ///< (workers)
  std::map<BatchKey, Clock::time_point> holds_;
};

}  // namespace headway::hybrid
