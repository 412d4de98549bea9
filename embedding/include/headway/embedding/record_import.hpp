// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/embedding/table.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

namespace headway::embedding {

/// Records in memory of the caller, from a file or a state_dict(). A record is a key and what a table stores about it.
struct RecordColumns {
  std::span<std::uint64_t const> ids{};
  std::span<std::uint32_t const> tables{};  ///< (ids.size()); empty: all are of `table`.
  std::uint32_t table = 0;
  std::span<std::uint32_t const> counts{};  ///< Lookups.
  std::span<std::uint32_t const> steps{};   ///< Step of the last lookup. Empty if the keys are pending; likewise below.
  std::span<float const> embeddings{};      ///< (ids.size(), dim)
  std::span<float const> states{};          ///< (ids.size(), state_size)
  std::size_t dim = 0, state_size = 0;
  bool are_pending = false;  ///< Keys that wait for a row, with their counts. False: keys with their rows.

  [[nodiscard]] Key operator[](std::size_t i) const {
    return {.id = ids[i], .table = tables.empty() ? table : tables[i]};
  }
};

/// A table that takes records.
struct RecordTarget {
  Table* table = nullptr;
  std::vector<std::uint32_t> table_ids;  ///< Tables (Key::table) whose records it takes.
  /// Optimizer state of the rows, whatever the records say. None: that of the records; a table without state drops it.
  std::optional<float> initial_state{};
};

/// A table has no room for a record.
class NoRoomForRecords : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Imports the records that a rank owns, each into the target that has its table. Records of other ranks and tables are
/// dropped. Nothing counts as a lookup. Rows must be imported before pending keys.
/// @throws NoRoomForRecords if there is none
/// @throws base::UsageError if embeddings or states are of another width than those of a target
void import_records_of_rank(RecordColumns const& records, std::span<RecordTarget const> targets, std::uint32_t rank,
                            std::uint32_t num_ranks);

}  // namespace headway::embedding
