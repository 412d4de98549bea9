// SPDX-License-Identifier: Apache-2.0

// Exchange of the rows of all merged tables (tables of equal settings that share one store) in one all-to-all:
// embeddings to the ranks that asked for them, or gradients to the owners of the keys. Flags are a few floats that each
// rank sends to every rank beside the rows.
//
// Example: two merged tables with 1 and 2 columns, 2 ranks, and one flag. A rank has 1 and 2 rows of the first table
// for the ranks, and 1 and 0 of the second. Its block for rank 0 has 1 + 2 + 1 floats, and that for rank 1 has 2 + 0
// + 1. Each rank keeps its block for itself out of the exchange.

#pragma once

#include "exchange/rank_blocks.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace headway::embedding {

/// Rows of one merged table for an exchange.
struct SentRows {
  Block<float> values;                    ///< (rows, width), sorted by rank.
  std::size_t width;                      ///< Floats per row.
  std::span<std::size_t const> sent;      ///< (ranks) Rows for each rank.
  std::span<std::size_t const> received;  ///< (ranks) Rows from each rank.
};

/// One exchange; see the top of this file.
class RowExchange {
 public:
  /// Starts the exchange. Does not wait.
  /// @param flags (N) floats that go to every rank, such as which tables have gradients
  RowExchange(BatchDevice& device, Exchanger& exchanger, std::span<SentRows const> tables, Block<float> const& flags);

  /// Would finish() return without a wait?
  [[nodiscard]] bool is_ready() { return exchange_->is_done(); }
  /// Waits. @returns the received rows of each merged table, sorted by rank
  [[nodiscard]] std::vector<Block<float>> finish();
  /// (ranks, N) The flags of all ranks, after finish().
  [[nodiscard]] Block<float> const& flags() const { return flags_; }
  /// Floats that this rank sends to others.
  [[nodiscard]] std::size_t num_sent() const { return num_sent_; }

 private:
  [[nodiscard]] bool is_in_place() const { return received_.size() == 1 && num_flags_ == 0; }

  BatchDevice& device_;
  std::vector<std::vector<std::size_t>> received_;  ///< (merged tables)(ranks) Floats.
  std::size_t own_;                                 ///< This rank.
  std::size_t num_flags_, num_sent_ = 0;
  std::unique_ptr<RankBlocks<float>> sends_, receives_;
  /// Rows of each merged table, and the flags, that this rank sends to itself. finish() copies them.
  std::vector<Block<float>> own_rows_;
  Block<float> flags_;
  std::unique_ptr<Exchanger::Exchange> exchange_;
};

}  // namespace headway::embedding
