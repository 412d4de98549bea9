// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/thread_pool.hpp"
#include "headway/comm/group.hpp"
#include "headway/embedding/features.hpp"
#include "headway/embedding/pairwise_lookup.hpp"
#include "headway/serving/batch_record.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace headway::serving {

/// Gets the embeddings of batches from the ranks that own their rows. No call waits. One thread uses it.
class RowFetcher {
 public:
  /// The rows of one batch.
  class Fetch {
   public:
    virtual ~Fetch() = default;
    /// Has everything come? @throws std::exception: it will not
    [[nodiscard]] virtual bool poll() = 0;
    /// Rank whose rows have not come; -1: none, or not known.
    [[nodiscard]] virtual int missing_rank() const = 0;
    /// When the rows of each rank that was asked were here, after poll() has returned true; empty if it is not known.
    [[nodiscard]] virtual std::vector<Arrival> arrivals() const { return {}; }
    /// After poll() has returned true. See embedding::PairwiseLookup::expand().
    virtual void expand(std::size_t merged, std::span<float> out) = 0;
  };

  RowFetcher() = default;
  RowFetcher(RowFetcher const&) = delete;
  RowFetcher& operator=(RowFetcher const&) = delete;
  virtual ~RowFetcher() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  /// Adds tables, which all ranks have to add before one of them begins a batch of this version.
  virtual void add_version(std::uint64_t version, std::vector<embedding::ReadTable> tables) = 0;
  /// Frees tables that no rank has a batch of.
  virtual void remove_version(std::uint64_t version) = 0;

  // Ranks of a ring read one version in each batch, and have to agree on the first batch of another one. Other fetchers
  // take any version at any time, and have nothing to do here.
  /// Do ranks have to agree?
  [[nodiscard]] virtual bool plans_switches() const { return false; }
  /// Rank 0: chooses the first batch of another version, so that no rank has begun it. Until plan_switch() or
  /// cancel_switch() this rank begins no batch that would let others come there.
  /// @param max_in_flight most batches that a rank has begun and not finished
  /// @returns its number, as all ranks count their batches
  [[nodiscard]] virtual std::uint64_t hold_for_switch(std::size_t /*max_in_flight*/) { return 0; }
  /// Batches from number `first` on will read `version`, which was added.
  /// @returns whether this rank had not begun the batch; otherwise nothing is planned
  [[nodiscard]] virtual bool plan_switch(std::uint64_t /*version*/, std::uint64_t /*first*/) { return true; }
  virtual void cancel_switch() {}
  /// May a batch begin now?
  [[nodiscard]] virtual bool may_begin() const { return true; }
  /// Version that the next begin() has to name, if the engine wants `wanted`.
  [[nodiscard]] virtual std::uint64_t version_of_next(std::uint64_t wanted) { return wanted; }
  /// Will no later batch of this rank read a version?
  [[nodiscard]] virtual bool has_left(std::uint64_t /*version*/) const { return true; }

  /// Starts to fetch. The features may be freed afterwards.
  /// @throws base::OperationError if a rank is lost
  [[nodiscard]] virtual std::unique_ptr<Fetch> begin(std::uint64_t version,
                                                     std::span<embedding::Feature const> features) = 0;
  /// Does a peer wait for a batch of this rank? Then this rank has to begin one, perhaps without features.
  [[nodiscard]] virtual bool must_begin() { return false; }
  /// Answers the keys of peers. @returns whether there were any
  /// @throws base::OperationError if a rank is lost
  virtual bool answer_peers() = 0;
  /// Lets `wake` be called, on another thread, when a call here may find something new. It may be called too often, and
  /// after this object is destroyed.
  virtual void wake_on_change(std::function<void()> const& wake) = 0;
  /// Says that this rank will begin no batch any more. @returns whether all ranks have said so; until then go on to
  /// answer_peers()
  /// @throws base::OperationError if a rank is lost
  [[nodiscard]] virtual bool leave() = 0;
  /// Ends the group, so that all ranks form another. It may have failed before.
  virtual void abort(std::string const& reason) = 0;
};

/// Fetches by messages between pairs of ranks (embedding::PairwiseLookup).
/// @param group null: this rank is alone; its channels are not used
[[nodiscard]] std::unique_ptr<RowFetcher> make_pairwise_fetcher(std::shared_ptr<comm::Group> group,
                                                                std::shared_ptr<base::ThreadPool> thread_pool);

/// Fetches by all-to-alls with bounded lag (embedding::ShardedTable): all ranks begin as many batches, and one may be
/// `max_lag` of the group ahead of the others. All ranks read the same version in a batch. Versions agree about ids
/// without a row (ReadTable::reads_unknown_as_zeros).
/// @param group has two channels; null: this rank is alone
/// @param key_room keys that a rank sends another one at once; equal on all ranks. More go in a second message
[[nodiscard]] std::unique_ptr<RowFetcher> make_ring_fetcher(std::shared_ptr<comm::Group> group,
                                                            std::shared_ptr<base::ThreadPool> thread_pool,
                                                            std::size_t key_room = 4096);

}  // namespace headway::serving
