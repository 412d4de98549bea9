// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/embedding/record_file.hpp"
#include "headway/hybrid/body.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

// Bodies of the requests by which parameter servers write and read checkpoints. checkpoint_messages.cpp has their
// layout. Servers see the same folder as the dense worker that asks.

namespace headway::hybrid {

/// Asks a server to write its rows as they are when all parts of the steps below `step`, and no others, are applied.
struct SaveArgs {
  std::uint64_t step = 0;
  std::uint64_t end = 0;  ///< No lookup comes from this step on.
  std::string path;       ///< The file, which is made.
};

/// Blocks that a server has written of one merged table.
struct SavedTable {
  std::uint64_t dim = 0, state_size = 0;  ///< Floats of an embedding, and of its optimizer state.
  std::vector<embedding::RecordBlock> blocks;
};

/// Records that a server takes into one merged table.
struct LoadedTable {
  std::vector<std::uint32_t> table_ids;  ///< Tables that the checkpoint has. Others keep their rows.
  std::optional<float> initial_state;    ///< Optimizer state of all rows; none: that of the records.
};

/// Asks a server to read its share of the records. They replace the present ones at ServerRequest::kTakeLoaded.
struct LoadArgs {
  std::uint64_t step = 0;              ///< Optimizer steps of the checkpoint.
  std::uint32_t index = 0, count = 1;  ///< The server's share of the ids: number `index` of `count`.
  std::vector<embedding::RecordSource> sources;
  std::vector<LoadedTable> tables;  ///< (merged tables)
};

[[nodiscard]] Body encode_save(SaveArgs const& save);
/// @throws base::UsageError for a malformed message; likewise below
[[nodiscard]] SaveArgs decode_save(std::span<std::byte const> body);
[[nodiscard]] Body encode_saved(std::span<SavedTable const> tables);
[[nodiscard]] std::vector<SavedTable> decode_saved(std::span<std::byte const> body);
[[nodiscard]] Body encode_load(LoadArgs const& load);
[[nodiscard]] LoadArgs decode_load(std::span<std::byte const> body);
/// @param evicted (merged tables) Rows for which the server's limit has no room.
[[nodiscard]] Body encode_evicted(std::span<std::uint64_t const> evicted);
[[nodiscard]] std::vector<std::uint64_t> decode_evicted(std::span<std::byte const> body);

}  // namespace headway::hybrid
