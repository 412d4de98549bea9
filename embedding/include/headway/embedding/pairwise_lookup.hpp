// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/status.hpp"
#include "headway/base/thread_pool.hpp"
#include "headway/comm/group.hpp"
#include "headway/embedding/batch_device.hpp"
#include "headway/embedding/features.hpp"
#include "headway/embedding/table.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

namespace headway::embedding {

/// Tables of equal options that share storage, for reading.
struct ReadTable {
  std::shared_ptr<Table const> rows;    ///< Rows of this rank, in host memory.
  std::vector<std::uint32_t> tables{};  ///< Ids of the tables, as in Feature::table and Key::table.
  bool reads_unknown_as_zeros = false;  ///< Ids without a row: zeros instead of their initial embedding.
};

/// An owner has no tables of the version that a batch asked for.
class VersionMissing : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Lookups in tables whose rows are spread over ranks, by messages between pairs of ranks. They read: no id is inserted
/// or counted. Ranks do not take turns, so a rank begins batches when it likes, and only answers keys while it has
/// none. Embeddings have the bits of ShardedTable with LookupMode::kRead. pairwise_lookup.cpp explains the messages.
///
/// Several *versions* of the tables may exist. A batch names the version that it reads, at all owners.
///
/// Every call returns without waiting. Not thread-safe.
class PairwiseLookup {
 public:
  /// A lookup of one batch. If it is destroyed before it is finished, the answers that come are dropped.
  class Batch;
  struct DeleteBatch {
    void operator()(Batch* batch) const;
  };
  using BatchPtr = std::unique_ptr<Batch, DeleteBatch>;

  /// @param group whose ranks share the tables; it must outlive this object. Null: this rank is alone. Nothing else may
  ///   send messages whose `match` has bit 61 set. Its `timeout` also limits how long a rank may wait for keys
  explicit PairwiseLookup(comm::Group* group, std::shared_ptr<base::ThreadPool> thread_pool = nullptr);
  ~PairwiseLookup();
  PairwiseLookup(PairwiseLookup const&) = delete;
  PairwiseLookup& operator=(PairwiseLookup const&) = delete;

  /// Adds a version of the tables. Peers may ask for it from now on.
  /// @throws base::UsageError if the version is there, or an id of a table twice
  void add_version(std::uint64_t version, std::vector<ReadTable> tables);
  /// Removes a version. No batch that reads it may exist on any rank: it would get a VersionMissing.
  void remove_version(std::uint64_t version);
  [[nodiscard]] bool has_version(std::uint64_t version) const { return versions_.contains(version); }

  /// Removes duplicates, and sends the keys to their owners. The features may be freed afterwards.
  /// @throws base::UsageError if the version is missing here, lengths do not add up to the ids, or a feature names no
  ///   table of it; base::OperationError if the group has failed, likewise below
  [[nodiscard]] BatchPtr begin(std::uint64_t version, std::span<Feature const> features);
  /// Have all embeddings come?
  /// @throws VersionMissing that names the rank
  [[nodiscard]] bool poll(Batch& batch);
  /// Rank that has not answered; -1: all have.
  [[nodiscard]] int missing_rank(Batch const& batch) const;
  /// When poll() has found the answers of each rank that was asked, by rank.
  [[nodiscard]] std::map<int, std::chrono::steady_clock::time_point> arrivals(Batch const& batch) const;
  /// Bags of the features of merged table `merged`, an index into the tables of the version.
  [[nodiscard]] std::size_t num_bags(Batch const& batch, std::size_t merged) const;
  /// Writes the embeddings of all bags of the features of a merged table, in the order of the features: the sum or mean
  /// of each list, or one embedding per id.
  /// @param batch of which poll() has returned true
  /// @param out (bags of the merged table, dim)
  void expand(Batch const& batch, std::size_t merged, std::span<float> out);

  /// Answers the keys of other ranks that have come. @returns the number of answers
  std::size_t answer();
  /// Calls `wake` on another thread when poll() or answer() may find something new. It may be called too often, and
  /// until the group is destroyed, so it shares what it uses. A message that arrived before this call counts.
  /// @param batches those that are not finished
  void wake_on_arrival(std::span<Batch* const> batches, std::function<void()> const& wake);

 private:
  class Unfinished;
  struct Version;
  struct Question;  // Keys of another rank, on their way here.

  /// Sends the keys of a batch that a rank owns, if there are any.
  void ask(Batch& batch, int rank, std::uint64_t number);
  void take_rows(Batch& batch);
  void read_rows(ReadTable const& table, Keys const& keys, std::span<float> out);
  void receive_question();
  void reply(Question const& question);
  void write_rows(Version const& version, std::span<std::uint64_t const> words, std::span<std::byte> out);

  comm::Group* group_;
  std::shared_ptr<BatchDevice> device_;
  int rank_, size_;
  std::map<std::uint64_t, std::unique_ptr<Version>> versions_;
  std::uint64_t num_begun_ = 0;
  std::shared_ptr<Question> next_;                    ///< The next question of any rank.
  std::vector<std::shared_ptr<Question>> questions_;  ///< Their keys are still arriving.
  std::shared_ptr<Unfinished> unfinished_;            ///< Sends, and receives of batches that were destroyed early.
};

}  // namespace headway::embedding
