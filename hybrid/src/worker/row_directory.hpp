// SPDX-License-Identifier: Apache-2.0

// Rows of small tables as an embedding worker knows them, by id. Servers hand out their indices (row_indices.cpp), and
// dense workers keep the rows in step.
//
// Idea: an id is asked for once. Its index and row stay here until a generation begins, since a load changes rows. An
// answer to a dense worker has indices in place of ids, and the rows that the worker may not have.
//
// Example: 2 servers. A batch has ids 70, 5 and 70, and none is known. Server 0 owns 70 and server 1 owns 5. Both
// answer index 0, so the global indices are 0 and 1, and the answer has 0, 1, 0 with both rows.
//
// Invariants: a row counts as known to a dense worker once gradients of a batch with it have come. An answer that came
// before may have been dropped unread. A dense worker ignores rows that it has.
// Complexity: O(1) for an id of a batch.

#pragma once

#include "headway/embedding/features.hpp"
#include "headway/hybrid/embedding_client.hpp"
#include "headway/hybrid/worker_messages.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace headway::hybrid {

class RowDirectory {
 public:
  /// @param tables merged tables; `small` are indices of those with row indices, each of one table
  RowDirectory(EmbeddingClient& client, std::span<embedding::MergedTable const> tables,
               std::span<std::size_t const> small);

  /// Questions of a batch to servers.
  struct Lookup {
    struct AtServer {
      Requester::CallPtr call{};                      ///< Null: nothing is missing.
      std::vector<std::vector<std::uint64_t>> ids{};  ///< (small tables)
    };
    std::vector<AtServer> servers{};
  };
  /// Asks servers for ids that are not known. Does not wait. Features of other tables are ignored; likewise below.
  [[nodiscard]] Lookup start(std::span<embedding::Feature const> features);
  /// Takes the answers that have come. @returns whether all have
  [[nodiscard]] bool is_ready(Lookup& lookup);
  /// Waits for them.
  void wait(Lookup& lookup);

  /// Rows that a dense worker has: (small tables) marks by position in this directory.
  using Known = std::vector<std::vector<bool>>;
  /// Positions of rows in this directory, (small tables).
  using Positions = std::vector<std::vector<std::uint32_t>>;
  /// Writes the part of small tables into an answer, once all ids are known.
  /// @returns the rows that it has
  Positions write(std::span<embedding::Feature const> features, Known const& known, Embeddings& embeddings) const;
  static void mark(Known& known, Positions const& rows);

  void clear();
  [[nodiscard]] bool is_small(std::uint32_t table) const { return index_of_.contains(table); }

 private:
  struct Table {
    std::size_t merged = 0;
    std::uint32_t id = 0;
    std::size_t dim = 0;
    std::unordered_map<std::uint64_t, std::uint32_t> position_of{};
    IndexedRows rows{};  ///< With global indices.
  };
  void take(std::size_t server, Lookup::AtServer& of_server, Body const& body);
  static void append(IndexedRows& to, IndexedRows const& from, std::size_t row, std::size_t dim);

  EmbeddingClient& client_;
  std::vector<Table> tables_;
  std::unordered_map<std::uint32_t, std::size_t> index_of_;  ///< By table id.
};

}  // namespace headway::hybrid
