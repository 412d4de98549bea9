// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/hybrid/body.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

// Rows of small tables, which dense workers keep in step (HybridConfig.sync_rows in Python). They have row indices in
// place of ids, so that no dense worker sees an id. indexed_rows.cpp has the layout of the messages.

namespace headway::hybrid {

/// Rows of one table and their indices. Shapes: N rows, S floats of optimizer state.
struct IndexedRows {
  std::vector<std::uint32_t> indices{};     ///< (N)
  std::vector<std::uint32_t> are_stored{};  ///< (N) 0: it has its initial embedding, and nothing below counts.
  std::vector<std::uint32_t> counts{};      ///< (N) Lookups.
  std::vector<std::uint32_t> steps{};       ///< (N) Step of the last lookup.
  std::vector<float> embeddings{};          ///< (N, dim)
  std::vector<float> states{};              ///< (N, S)
};

/// Ids of which a server shall tell indices and rows.
struct RowQuery {
  std::size_t merged = 0;  ///< Index of a merged table, which is of one table.
  std::span<std::uint64_t const> ids{};
};
[[nodiscard]] Body encode_row_queries(std::span<RowQuery const> queries);
/// @throws base::UsageError for a malformed message; likewise below
[[nodiscard]] std::vector<RowQuery> decode_row_queries(std::span<std::byte const> body, std::size_t num_merged);

/// Rows of several tables: the answer to queries, in their order.
[[nodiscard]] Body encode_indexed_rows(std::span<IndexedRows const> tables);
[[nodiscard]] std::vector<IndexedRows> decode_indexed_rows(std::span<std::byte const> body);

/// Rows that a server shall store. Indices are those of the server.
struct RowsToStore {
  std::size_t merged = 0;
  IndexedRows rows{};
};
[[nodiscard]] Body encode_rows_to_store(std::span<RowsToStore const> tables);
[[nodiscard]] std::vector<RowsToStore> decode_rows_to_store(std::span<std::byte const> body, std::size_t num_merged);

}  // namespace headway::hybrid
