// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace headway::benchmarks {

/// Interface of the compared CPU tables. Each system gets the same calls.
class TableSystem {
 public:
  TableSystem() = default;
  TableSystem(TableSystem const&) = delete;
  TableSystem& operator=(TableSystem const&) = delete;
  virtual ~TableSystem() = default;

  /// Inserts new ids with their embeddings. `embeddings`: (ids, dim).
  virtual void insert(std::span<std::uint64_t const> ids, std::span<float const> embeddings) = 0;
  /// Finds the rows of ids, all of which are in the table. Each system numbers rows its own way. `out`: (ids).
  virtual void find_rows(std::span<std::uint64_t const> ids, std::span<std::uint32_t> out) = 0;
  /// Copies the embeddings of ids, all of which are in the table. `out`: (ids, dim).
  virtual void find_embeddings(std::span<std::uint64_t const> ids, std::span<float> out) = 0;
};

/// A system with its name.
struct NamedTableSystem {
  std::string name;
  std::unique_ptr<TableSystem> system;
};

/// Headway's table, FlatTable, and the hash maps that the program was built with; all empty.
std::vector<NamedTableSystem> make_table_systems(std::size_t dim, int num_threads);

}  // namespace headway::benchmarks
