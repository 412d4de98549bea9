#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace headway::benchmarks {

/// What finds vectors by id. Each gets the same calls.
class TableSystem {
 public:
  TableSystem() = default;
  TableSystem(TableSystem const&) = delete;
  TableSystem& operator=(TableSystem const&) = delete;
  virtual ~TableSystem() = default;

  /// Copies the vectors of new ids. `vectors`: (ids, dim).
  virtual void insert(std::span<std::uint64_t const> ids, std::span<float const> vectors) = 0;
  /// Finds the rows of ids that are there, each system by its own numbers. `out`: (ids).
  virtual void find_rows(std::span<std::uint64_t const> ids, std::span<std::uint32_t> out) = 0;
  /// Copies the vectors of ids that are there. `out`: (ids, dim).
  virtual void find_vectors(std::span<std::uint64_t const> ids, std::span<float> out) = 0;
};

struct NamedTableSystem {
  std::string name;
  std::unique_ptr<TableSystem> system;
};

/// Headway's table, and the maps that this program was built with, all empty.
std::vector<NamedTableSystem> make_table_systems(std::size_t dim, int num_threads);

}  // namespace headway::benchmarks
