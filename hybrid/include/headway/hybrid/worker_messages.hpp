// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/embedding/features.hpp"
#include "headway/embedding/sharded_table.hpp"
#include "headway/hybrid/indexed_rows.hpp"
#include "headway/hybrid/server_messages.hpp"
#include "headway/hybrid/step_ledger.hpp"
#include "headway/kernels/id_lists.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

// Bodies of the requests to an embedding worker. worker_messages.cpp has their layout. Loaders send batches of ids.
// Dense workers fetch the embeddings of a batch, and return gradients; they never see an id.

namespace headway::hybrid {

enum class WorkerRequest : std::uint32_t {
  kSetUp = 1,            ///< Tables and features. The first one connects; others are compared with it.
  kBeginGeneration = 2,  ///< StepLedger::Options. Ends generations before.
  kSubmit = 3,           ///< Ids of a batch, from a loader; answered when there is room for them.
  kFetch = 4,            ///< A dense worker takes a batch for a step; answered with embeddings.
  kGradients = 5,        ///< Gradients of that batch; answered when all servers have taken them.
  kDrop = 6,             ///< They will not come; answered likewise.
  kRead = 7,             ///< Embeddings of a batch without insertion, whatever the step. The batch ends.
  kEndAt = 8,            ///< No batch will be fetched from this step on.
  kStatus = 9,           ///< Answered with WorkerStatus.
};

/// Name of a batch, which its loader makes without asking anybody: a number of the loader, and one that it counts.
struct BatchName {
  std::uint64_t loader = 0, number = 0;

  auto operator<=>(BatchName const&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14 sees a 0.
};
[[nodiscard]] std::string to_string(BatchName name);

/// A feature, without its ids.
struct FeatureSetting {
  std::string name{};
  std::uint32_t table = 0;
  embedding::Pooling pooling = embedding::Pooling::kNone;

  bool operator==(FeatureSetting const&) const = default;
};

/// Ids of one feature. Views of memory that the caller keeps. Shapes: K ids, B lists.
struct FeatureIds {
  std::span<std::int64_t const> ids{}, lengths{};  ///< (K), (B)
  std::span<float const> weights{};                ///< (K), or empty: 1 each.
};

/// @param small merged tables that dense workers keep in step: they get row indices
[[nodiscard]] Body encode_set_up(std::span<embedding::MergedTable const> tables,
                                 std::span<FeatureSetting const> features, Compression compression = {},
                                 std::span<std::size_t const> small = {});
struct DecodedSetUp {
  std::vector<embedding::MergedTable> tables{};
  std::vector<FeatureSetting> features{};
  Compression compression{};
  std::vector<std::size_t> small{};
};
/// @throws base::UsageError for a malformed message; likewise below
[[nodiscard]] DecodedSetUp decode_set_up(std::span<std::byte const> body);

[[nodiscard]] Body encode_submit(BatchName name, std::span<FeatureIds const> features, Compression compression = {});
struct DecodedSubmit {
  BatchName name;
  std::vector<FeatureIds> features{};  ///< Views of the body, or of `storage`.
  std::int64_t saved_bytes = 0;        ///< By compression; it may cost a few bytes if there are few ids.
  std::vector<kernels::IdLists> storage{};
};
/// @param most_bytes limit of compressed lengths and ids, which may be many in a short message
[[nodiscard]] DecodedSubmit decode_submit(std::span<std::byte const> body, std::size_t num_features,
                                          Compression compression = {},
                                          std::size_t most_bytes = std::size_t{256} << 20);
/// The name alone.
[[nodiscard]] BatchName decode_submit_name(std::span<std::byte const> body);

/// kFetch; kRead has no batch of a step.
[[nodiscard]] Body encode_fetch(BatchName name, BatchId batch);
[[nodiscard]] std::pair<BatchName, BatchId> decode_fetch(std::span<std::byte const> body);

/// A feature of a small table. Shapes as for FeatureIds.
struct SmallFeature {
  std::vector<std::uint32_t> indices{};  ///< (K) Row indices in place of ids.
  std::vector<std::int64_t> lengths{};   ///< (B)
  std::vector<float> weights{};          ///< (K), or empty.
};

/// Embeddings of a batch: the answer to kFetch and kRead.
struct Embeddings {
  std::vector<std::uint64_t> num_bags{};     ///< (features) One bag per list, or per id without pooling.
  std::vector<std::vector<float>> values{};  ///< (merged tables) (bags, dim), features in their order.
  /// (merged tables) (bags) or empty. Bags of equal index hold the same one id, so they have one embedding, which
  /// travels once. Indices count in the order of first bags; see embedding::RoutedBatch::distinct_bags().
  std::vector<std::vector<std::uint32_t>> distinct_bags{};
  std::vector<SmallFeature> small_features{};  ///< Features of small tables, whose `values` are empty.
  std::vector<IndexedRows> small_rows{};       ///< (small tables) Rows that the dense worker may not have.
};
/// Bytes of the part of small tables.
[[nodiscard]] std::size_t small_bytes_of(Embeddings const& embeddings);
/// @param half_dims (merged tables) columns of a row, whose values are compressed; empty: they are not
[[nodiscard]] Body encode_embeddings(Embeddings const& embeddings, std::span<std::size_t const> half_dims = {});
[[nodiscard]] Embeddings decode_embeddings(std::span<std::byte const> body, std::span<std::size_t const> half_dims = {},
                                           std::size_t most_bytes = std::size_t{1} << 32);

/// The sum of gradients of each distinct bag. @param gradients (bags, dim) @returns (distinct bags, dim)
[[nodiscard]] std::vector<float> sum_distinct(std::span<std::uint32_t const> distinct_bags, std::size_t dim,
                                              std::span<float const> gradients);
/// Gradients of bags with these sums: the first bag of each index has its sum, and others have zeros.
/// @param sums (distinct bags, dim) @returns (bags, dim)
[[nodiscard]] std::vector<float> spread_distinct(std::span<std::uint32_t const> distinct_bags, std::size_t dim,
                                                 std::span<float const> sums);
[[nodiscard]] std::size_t num_distinct(std::span<std::uint32_t const> distinct_bags);

/// State of an embedding worker. A batch that was submitted is in one place:
/// submitted = waiting_loaders + buffered + in_flight + trained + read + the sum of `lost`.
struct WorkerStatus {
  std::uint64_t generation = 0;
  std::uint64_t submitted = 0;        ///< Batches of loaders.
  std::uint64_t fetched = 0;          ///< By dense workers.
  std::uint64_t trained = 0;          ///< All servers have taken their gradients.
  std::uint64_t read = 0;             ///< Looked up without training.
  std::uint64_t dropped = 0;          ///< Void notices of dense workers, also for steps without a batch.
  std::uint64_t waiting_loaders = 0;  ///< Batches that wait for room now; likewise below.
  std::uint64_t buffered = 0, buffered_bytes = 0;
  std::uint64_t in_flight = 0;        ///< Fetched, and not ended.
  std::uint64_t loader_waits = 0;     ///< Batches that had to wait for room.
  std::uint64_t loader_wait_ns = 0;   ///< Time that they waited, with those that still do.
  std::uint64_t answered = 0;         ///< Fetches that got their embeddings.
  MessageBytes messages{};            ///< Ids from loaders; embeddings and gradients of dense workers.
  std::vector<std::uint64_t> lost{};  ///< (kNumLossCauses) Batches that were not trained, by cause.

  struct Server {
    std::string name{};
    std::uint64_t num_last = 0;  ///< Fetches for which this server's rows were the last ones missing.
    std::uint64_t last_ns = 0;   ///< Time of those fetches, from the request to the embeddings.
    std::uint64_t bytes_sent = 0, bytes_received = 0;
  };
  std::vector<Server> servers{};  ///< Empty: there are no tables yet.
};
[[nodiscard]] Body encode_worker_status(WorkerStatus const& status);
[[nodiscard]] WorkerStatus decode_worker_status(std::span<std::byte const> body);

}  // namespace headway::hybrid
