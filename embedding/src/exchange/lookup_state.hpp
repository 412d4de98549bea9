// SPDX-License-Identifier: Apache-2.0

// State of batches between the calls of a ShardedTable: of lookups (set by begin() and finish()), and of gradients (set
// by return_gradients()). sharded_table.cpp explains the steps, and what K, U, V and W are.

#pragma once

#include "exchange/key_exchange.hpp"
#include "exchange/rank_blocks.hpp"
#include "headway/base/status.hpp"
#include "headway/embedding/sharded_table.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

namespace headway::embedding {

/// Scope of a collective call. If it ends by an exception, this rank has left an exchange that others make, so
/// `is_broken` stays set, and no later call may begin.
class ExchangeScope {
 public:
  /// @throws base::UsageError if a call before has failed
  explicit ExchangeScope(bool& is_broken) : is_broken_(is_broken) {
    base::expects(!is_broken, "an exchange of these tables has failed on this rank: ranks have to make them anew");
    is_broken_ = true;
  }
  ExchangeScope(ExchangeScope const&) = delete;
  ExchangeScope& operator=(ExchangeScope const&) = delete;
  void succeed() { is_broken_ = false; }

 private:
  bool& is_broken_;
};

/// The features of a merged table, one after the other.
struct Inputs {
  std::vector<std::uint64_t> ids;     ///< (K)
  std::vector<std::uint32_t> tables;  ///< (K)
  std::vector<std::int64_t> offsets;  ///< (bags + 1), or empty if each id is a bag.
  std::vector<float> weights;         ///< (K), or empty if all are 1.
  std::vector<bool> are_means;        ///< (bags), or empty if no feature has kMean.
  std::size_t num_bags = 0;

  [[nodiscard]] Keys keys() const { return {.ids = ids, .tables = tables}; }
  [[nodiscard]] Bags bags() const { return {.offsets = offsets, .weights = weights}; }
};

/// State of a lookup in one merged table. begin() sets the first group of fields, finish() the second.
struct ShardedTable::TableLookup {
  Inputs inputs;
  UniqueKeys unique;              ///< (U) With several ranks sorted by owner.
  std::vector<std::size_t> sent;  ///< (ranks) Keys for each owner; they add up to U.

  std::vector<std::size_t> received;  ///< (ranks) Keys from each rank; they add up to V.
  UniqueKeys owned;                   ///< (W) Unique ones of the received keys. Empty if `unique` serves: see in_rows.
  std::vector<RowId> rows;            ///< (W)
  std::vector<float> are_known;       ///< (W) 1, or 0 if a key gives zeros as it has no row; empty: no key does.
  std::uint64_t generation = 0;       ///< That of the table when `rows` was found.
  std::uint64_t num_refused = 0;      ///< Keys without a row since a table is full, on all ranks.
  bool in_rows = false;               ///< Embeddings are read from the rows of `unique`: one rank, no copies.
  std::vector<float> embeddings;      ///< (U, dim), unless in_rows and not kept for weight_gradients().

  [[nodiscard]] UniqueKeys const& found() const { return in_rows ? unique : owned; }
  /// Weights of the positions of found(), each times `weights` if there are any; empty if all are 1.
  [[nodiscard]] std::vector<float> known_weights(std::span<float const> weights = {}) const {
    std::vector<float> result;
    if (are_known.empty()) return result;
    for (auto const unique_key : found().inverse_indices) result.push_back(are_known[unique_key]);
    for (std::size_t i = 0; i < weights.size(); ++i) result[i] *= weights[i];
    return result;
  }
};

struct ShardedTable::Batch::State {
  BatchOptions options;
  bool has_begun_to_finish = false;  ///< An exception in finish() leaves it so: the batch cannot be finished.
  bool is_finished = false;
  std::vector<TableLookup> lookups;
  std::optional<KeyExchange> keys;  ///< On their way until finish(); none with one rank.
  std::shared_ptr<std::multiset<std::uint32_t>> steps_in_use;
  std::multiset<std::uint32_t>::iterator step;

  State() = default;
  State(State const&) = delete;
  State& operator=(State const&) = delete;
  ~State() {
    if (steps_in_use != nullptr) steps_in_use->erase(step);
  }
};

/// Gradients of a lookup in one merged table.
struct ShardedTable::TableGradient {
  TableLookup const* lookup;
  bool is_there;                           ///< Does any rank have gradients?
  std::vector<float> values;               ///< (V, dim), unless in_rows.
  std::span<float const> bag_gradients{};  ///< (bags, dim) if in_rows; memory of the caller.
  std::optional<std::vector<float>> sums;  ///< (W, dim) once they are added; `values` is empty then.
};

/// Gradients of a batch.
struct ShardedTable::Gradients {
  std::shared_ptr<Batch::State> batch;
  std::vector<TableGradient> of_tables;
};

/// Elements of the block of each rank: `widths[merged]` for each of the keys of all merged tables, and `more`.
/// @param counts member of a lookup with the number of keys for, or from, each rank
template <class Lookup>
std::vector<std::size_t> block_sizes(std::vector<Lookup> const& lookups, std::vector<std::size_t> Lookup::*counts,
                                     std::span<std::size_t const> widths, std::size_t num_ranks, std::size_t more = 0) {
  std::vector<std::size_t> sizes(num_ranks, more);
  for (std::size_t merged = 0; merged < lookups.size(); ++merged) {
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      sizes[rank] += (lookups[merged].*counts)[rank] * widths[merged];
    }
  }
  return sizes;
}

/// Sends rows of all merged tables in one exchange.
/// @param rows of each merged table (keys, width), sorted by rank
/// @param sent, received members with the number of keys for, and from, each rank
/// @param notes (N) sent to every rank
/// @param all_notes gets (ranks, N)
/// @returns the received rows of each merged table, sorted by rank
template <class Lookup>
std::vector<std::vector<float>> exchange_rows(Exchanger& exchanger, std::vector<Lookup> const& lookups,
                                              std::vector<std::vector<float>> const& rows,
                                              std::span<std::size_t const> widths,
                                              std::vector<std::size_t> Lookup::*sent,
                                              std::vector<std::size_t> Lookup::*received, std::span<float const> notes,
                                              std::vector<float>& all_notes) {
  auto const num_ranks = static_cast<std::size_t>(exchanger.size());
  RankBlocks<float> sends(block_sizes(lookups, sent, widths, num_ranks, notes.size()));
  RankBlocks<float> receives(block_sizes(lookups, received, widths, num_ranks, notes.size()));
  for (std::size_t merged = 0; merged < lookups.size(); ++merged) {
    auto from = rows[merged].begin();
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      auto const count = static_cast<std::ptrdiff_t>((lookups[merged].*sent)[rank] * widths[merged]);
      sends.append(rank, std::span(from, from + count));
      from += count;
    }
  }
  for (std::size_t rank = 0; rank < num_ranks; ++rank) sends.append(rank, notes);
  start_exchange(exchanger, sends, receives)->wait();
  std::vector<std::vector<float>> result(lookups.size());
  for (std::size_t merged = 0; merged < lookups.size(); ++merged) {
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      auto const block = receives.take(rank, (lookups[merged].*received)[rank] * widths[merged]);
      result[merged].insert(result[merged].end(), block.begin(), block.end());
    }
  }
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    auto const block = receives.take(rank, notes.size());
    all_notes.insert(all_notes.end(), block.begin(), block.end());
  }
  return result;
}

}  // namespace headway::embedding
