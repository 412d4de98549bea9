// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/embedding/key.hpp"
#include "headway/embedding/sharded_table.hpp"
#include "headway/hybrid/body.hpp"
#include "headway/hybrid/compression.hpp"
#include "headway/hybrid/step_ledger.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Bodies of the requests to a parameter server. server_messages.cpp has their layout. A *batch* is that of one dense
// worker in one step; its keys are unique and sorted by merged table (tables of equal options that share storage).

namespace headway::hybrid {

enum class ServerRequest : std::uint32_t {
  kConfigure = 1,        ///< Tables. The first one makes them; others are compared with it.
  kBeginGeneration = 2,  ///< StepLedger::Options. Ends generations before.
  kLookup = 3,           ///< Keys of a batch; answered with rows as soon as the staleness allows.
  kPart = 4,             ///< Gradients of a batch that was looked up; answered when it was taken, not applied.
  kVoid = 5,             ///< The gradients of a batch will not come.
  kRead = 6,             ///< Keys, which are not inserted or counted; answered with rows at once.
  kEndAt = 7,            ///< No lookup will come from this step on.
  kStatus = 8,           ///< Answered with ServerStatus.
  kSave = 9,             ///< SaveArgs (checkpoint_messages.hpp); answered with SavedTable when the file is on disk.
  kLoad = 10,            ///< LoadArgs. Reads a checkpoint; answered with the rows that had no room.
  kTakeLoaded = 11,      ///< Replaces the tables by those of kLoad. Ends the generation.
  kRows = 12,            ///< RowQuery (indexed_rows.hpp): ids of small tables; answered with indices and rows.
  kStoreRows = 13,       ///< RowsToStore: rows of small tables, before kSave.
};

struct BatchId {
  std::uint64_t step = 0;
  std::uint32_t worker = 0;
};
[[nodiscard]] std::string to_string(BatchId batch);

/// Keys of one merged table. Views of memory that the caller keeps.
struct KeyList {
  std::span<std::uint64_t const> ids{};
  std::span<std::uint32_t const> tables{}, counts{};  ///< (ids.size())
};

/// Gradients of one merged table.
struct PartValues {
  double rate = 0;                     ///< Learning rate.
  std::span<float const> gradients{};  ///< (keys of the batch, dim), or empty: this batch has none.
};

/// Why the gradients of a batch for a server are lost.
enum class LossCause : std::uint32_t {
  kNoBatch,     ///< The worker had no batch in this step, since it ran out of data. Nothing is lost.
  kSkipped,     ///< The trainer made no optimizer step.
  kOverflow,    ///< A loss scaler found inf or NaN.
  kRefused,     ///< The server refused the gradients.
  kNotFinite,   ///< The server dropped gradients that are not finite.
  kGeneration,  ///< A later generation of dense workers began.
};
inline constexpr std::size_t kNumLossCauses = 6;
/// For example "no_batch".
[[nodiscard]] std::string_view to_string(LossCause cause);

/// State of a merged table at a server: see embedding::TableSize and TableStatistics.
struct TableStatus {
  /// How often the commonest id of a table occurs. The share of samples that hold it is about
  /// top_lookups / num_samples: alpha of the theorem on convergence. ServerMeter defines both.
  struct Share {
    std::string table{};
    std::uint64_t num_samples = 0, top_lookups = 0;
  };

  std::uint64_t rows = 0, cold_rows = 0, pending = 0, key_bytes = 0, row_bytes = 0;
  std::uint64_t inserted = 0, evicted = 0, expired = 0, refused = 0, dropped_gradients = 0;
  std::vector<Share> shares{};  ///< (tables)
};

/// Time for which lookups were held back at a server until the last missing part came, that of one dense worker.
struct WorkerWait {
  std::uint64_t num_lookups = 0, nanoseconds = 0;
};

struct ServerStatus {
  std::uint64_t generation = 0, num_applied = 0;
  std::uint64_t lookups = 0, reads = 0, parts = 0, voids = 0;
  std::uint64_t held = 0;             ///< Lookups that wait now.
  std::uint64_t void_not_finite = 0;  ///< Parts that were dropped because of a value that is not finite.
  std::uint64_t void_generation = 0;  ///< Parts that a later generation has dropped.
  /// Over all tables: see embedding::TableSize and TableStatistics. `bytes` is that of keys and rows.
  std::uint64_t rows = 0, cold_rows = 0, pending = 0, bytes = 0, evicted = 0, refused = 0, dropped_gradients = 0;
  MessageBytes messages{};                 ///< Keys, rows and gradients.
  std::vector<std::uint64_t> staleness{};  ///< (staleness + 1) Answers that lacked 0, 1, ... steps.
  std::uint64_t samples = 0;               ///< Samples of the batches that were looked up.
  std::vector<std::uint64_t> lost{};       ///< (kNumLossCauses) Parts that did not come or were dropped, by cause.
  std::vector<WorkerWait> waits{};         ///< (workers) By the worker whose part was missing.
  std::vector<TableStatus> tables{};       ///< (merged tables)
};

[[nodiscard]] Body encode_tables(std::span<embedding::MergedTable const> tables);
/// @throws base::UsageError for a malformed message; likewise below
[[nodiscard]] std::vector<embedding::MergedTable> decode_tables(std::span<std::byte const> body);

/// Tables and compression, in the body of kConfigure.
/// Columns of a row of each merged table if values are compressed, else none.
[[nodiscard]] std::vector<std::size_t> half_dims_of(std::span<embedding::MergedTable const> tables,
                                                    Compression compression);
[[nodiscard]] Body encode_configuration(std::span<embedding::MergedTable const> tables, Compression compression);
struct DecodedConfiguration {
  Compression compression;
  std::span<std::byte const> tables;  ///< A view of the body, for decode_tables().
};
[[nodiscard]] DecodedConfiguration decode_configuration(std::span<std::byte const> body);

/// @param token random number of the trainer, by which those that begin a generation at the same time are told apart
[[nodiscard]] Body encode_generation(StepLedger::Options const& options, std::uint64_t token);
[[nodiscard]] std::pair<StepLedger::Options, std::uint64_t> decode_generation(std::span<std::byte const> body);

/// @param tables (merged tables)
/// @param num_samples of the batch, for statistics
[[nodiscard]] Body encode_lookup(BatchId batch, std::span<KeyList const> tables, std::uint64_t num_samples = 0,
                                 Compression compression = {});
struct DecodedLookup {
  BatchId batch;
  std::uint64_t num_samples = 0;
  std::vector<KeyList> tables;   ///< Views of the body, or of `storage`.
  std::int64_t saved_bytes = 0;  ///< By compression; it may cost a few bytes if there are few keys.
  struct Storage {
    std::vector<std::uint64_t> ids;
    std::vector<std::uint32_t> tables, counts;
  };
  std::vector<Storage> storage{};  ///< (merged tables) Empty without compression.
};
/// @param most_keys limit of compressed keys, which may be many in a short message
[[nodiscard]] DecodedLookup decode_lookup(std::span<std::byte const> body, std::size_t num_tables,
                                          Compression compression = {}, std::size_t most_keys = std::size_t{1} << 20);

/// Rows of merged tables in the answer to a lookup, whose values are compressed.
/// @param dims (merged tables) columns of a row
/// @param num_rows (merged tables)
/// @param rows those of all tables, one after the other
[[nodiscard]] Body encode_rows(std::span<std::size_t const> dims, std::span<std::size_t const> num_rows,
                               std::span<float const> rows);
/// Bytes that compression saves of rows, beside those of headers.
[[nodiscard]] std::int64_t saved_bytes_of(std::size_t num_rows, std::size_t dim);
/// Reads an answer to a lookup.
/// @param dims (merged tables)
/// @param outs (merged tables) Gets the rows, which must be as many.
void decode_rows(std::span<std::byte const> body, std::span<std::size_t const> dims, Compression compression,
                 std::span<std::span<float> const> outs);

/// @param tables (merged tables)
/// @param half_dims (merged tables) columns of a row, whose values are compressed; empty: they are not
[[nodiscard]] Body encode_part(BatchId batch, std::span<PartValues const> tables,
                               std::span<std::size_t const> half_dims = {});
struct DecodedPart {
  BatchId batch;
  std::vector<PartValues> tables;           ///< Views of the body, or of `storage`.
  std::int64_t saved_bytes = 0;             ///< By compression.
  std::vector<std::vector<float>> storage;  ///< (merged tables) Empty without compression.
};
[[nodiscard]] DecodedPart decode_part(std::span<std::byte const> body, std::size_t num_tables,
                                      std::span<std::size_t const> half_dims = {});

[[nodiscard]] Body encode_batch(BatchId batch);
[[nodiscard]] BatchId decode_batch(std::span<std::byte const> body);

[[nodiscard]] Body encode_void(BatchId batch, LossCause cause);
[[nodiscard]] std::pair<BatchId, LossCause> decode_void(std::span<std::byte const> body);

[[nodiscard]] Body encode_status(ServerStatus const& status);
[[nodiscard]] ServerStatus decode_status(std::span<std::byte const> body);

}  // namespace headway::hybrid
