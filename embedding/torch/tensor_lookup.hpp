// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "feature_tensors.hpp"
#include "headway/base/thread_pool.hpp"
#include "headway/embedding/sharded_table.hpp"
#include "process_group/timed_exchanger.hpp"
#include "tensor_table.hpp"
#include "tensors.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace headway::embedding {

class TensorLookup;

/// A merged table of a TensorLookup: tables of equal configuration that share rows and exchanges.
struct LookedUpTable {
  c10::intrusive_ptr<TensorTable> table;
  std::vector<std::uint32_t> numbers;   ///< Key::table of each table in it.
  bool reads_unknown_as_zeros = false;  ///< In eval() mode, ids without a row give zeros, not initial embeddings.
};

/// Rules of a lookup for ids without a row.
struct LookupSettings {
  bool inserts = true;          ///< Insert keys that have no row, and count lookups.
  bool evaluates = false;       ///< The module is in eval() mode: see LookedUpTable::reads_unknown_as_zeros.
  bool counts_refused = false;  ///< Count keys that get no row as their table is full, for num_refused().
};

/// The lookup of one batch. It keeps the tensors of the batch until its gradients are applied or dropped.
class TensorBatch : public torch::CustomClassHolder {
 public:
  ~TensorBatch() override;

 private:
  friend class TensorLookup;
  friend struct ExpandFunction;

  /// Weights of a feature that require a gradient.
  struct LearnedWeights {
    std::size_t merged, feature;  ///< Index of the merged table; index of the feature among those of all tables.
    at::Tensor weights;           ///< Empty in a batch that waits for gradients: it would keep their graph.
    at::ScalarType type;
    std::int64_t num_keys;
    at::Tensor lengths;
    Pooling pooling;
    std::int64_t first_key;  ///< Position of its first id among the keys of the merged table.
  };

  std::shared_ptr<ShardedTable::Batch> batch_;
  std::vector<std::int64_t> num_bags_;  ///< (outputs) Rows of each.
  std::vector<LearnedWeights> learned_;
  std::shared_ptr<std::atomic<std::int64_t>> num_waiting_;  ///< Batches with autograd before their backward pass.
  bool is_waiting_ = false;
  bool inserts_ = true;
  std::vector<c10::Stream> streams_;  ///< CUDA streams that made or used the batch.
  std::optional<c10::Event> begun_;   ///< CUDA: point of the stream at which its keys were sent.
};

/// Lookups in the tables of a collection, as tensors with gradients: a ShardedTable for PyTorch. K ids of a feature, B
/// bags, D columns. (features), (outputs) and (merged tables) name the length of a vector.
class TensorLookup : public torch::CustomClassHolder {
 public:
  using BatchPtr = c10::intrusive_ptr<TensorBatch>;

  /// @param names, feature_tables, poolings (features) name, table id and pooling; the features of a merged table are
  ///   adjacent, in the order of `tables`
  /// @param group none: one rank
  /// @param by_feature one output for each feature; false: one for each merged table, feature by feature
  TensorLookup(std::vector<LookedUpTable> tables, std::vector<std::string> names,
               std::vector<std::uint32_t> feature_tables, std::vector<Pooling> poolings,
               c10::intrusive_ptr<c10d::ProcessGroup> const& group, Dedup dedup,
               std::shared_ptr<base::ThreadPool> thread_pool, at::Device device, bool by_feature);

  /// Starts a lookup. Does not wait.
  /// @param ids, lengths, weights (features) as for FeatureTensors::features(); weights may require a gradient
  [[nodiscard]] BatchPtr begin(std::vector<at::Tensor> const& ids, std::vector<at::Tensor> const& lengths,
                               std::vector<std::optional<at::Tensor>> const& weights, LookupSettings const& settings);
  /// Finishes a lookup. Inside a backward pass it inserts and counts nothing. A batch may be finished several times, as
  /// activation checkpointing does: each time is a lookup of its own.
  /// @param anchors (merged tables) parameters through which autograd calls the backward pass
  /// @returns (outputs) the embeddings of each, (B, D), or (K, D) without pooling
  [[nodiscard]] std::vector<at::Tensor> finish(BatchPtr const& batch, std::vector<at::Tensor> const& anchors);
  // The stages of finish() and of a step, for callers that overlap them, with autograd nodes of their own.

  /// Waits for sizes, and starts to send keys.
  void start_keys(BatchPtr const& batch);
  /// Waits for keys, and finds or inserts them. @param inserts false: also no lookup is counted
  void look_up(BatchPtr const& batch, bool inserts);
  /// Starts to send embeddings back. Does not wait.
  void start_embeddings(BatchPtr const& batch);
  /// Waits for embeddings. @returns (outputs)
  [[nodiscard]] std::vector<at::Tensor> take_embeddings(BatchPtr const& batch);
  /// () int64 Keys that got no row on this rank, between look_up() and take_embeddings().
  [[nodiscard]] at::Tensor own_refused(BatchPtr const& batch) const;
  /// Adds the gradients of bags by key, and starts to send them. @param gradients (outputs) @param factor
  /// multiplies them
  void start_gradients(BatchPtr const& batch, std::vector<at::Tensor> const& gradients, double factor);
  /// Waits for gradients, and updates the rows. @param steps, rates (merged tables)
  void update(BatchPtr const& batch, std::vector<std::uint64_t> const& steps, std::vector<double> const& rates);

  /// Reads the rows of `next`, batches of the next step, that `present` do not update: ShardedTable::read_ahead(). All
  /// ranks call it, after they have finished the lookups of `present`, and before the last backward pass of the step.
  /// On CUDA it runs on a stream of its own, beside the forward pass, and the host waits for it.
  /// @param step, oldest_in_use as for Table::begin_step(), of `next`
  void read_ahead(std::vector<BatchPtr> const& next, std::vector<BatchPtr> const& present, std::uint32_t step,
                  std::uint32_t oldest_in_use);
  /// Applies the gradients that apply() has deferred. All ranks call it.
  void drain();
  [[nodiscard]] bool has_deferred() const;
  /// Gives up batches that were read ahead and are not finished. All ranks call it.
  void forget_ahead();
  [[nodiscard]] bool has_ahead() const;

  /// Keys that got no row on any rank. Waits for the device.
  [[nodiscard]] std::uint64_t num_refused(BatchPtr const& batch) const;
  /// Replaces each merged table by one with the same options.
  void replace_tables(std::vector<c10::intrusive_ptr<TensorTable>> const& tables);

  [[nodiscard]] bool has_gradients(std::size_t merged) const;
  /// Gradients of a merged table that were not returned before: (W, D) sums of W keys, and (1,) int32 the number of
  /// valid rows or none: all. Also a (1, 1) mark per backward pass, so that a rank sees its own NaN and inf: 1 if all
  /// that it has sent to other ranks is finite, else NaN.
  [[nodiscard]] std::vector<std::pair<at::Tensor, std::optional<at::Tensor>>> new_gradients(std::size_t merged);
  /// @throws std::runtime_error if gradients were changed in place since the backward pass
  void expect_unchanged() const;
  /// Updates the rows by the pending gradients, and drops these, also after an error.
  /// @param rates (merged tables) learning rate of each table by number
  /// @param divisors (merged tables) divide the gradients
  void apply(std::uint64_t step, std::vector<std::map<std::uint32_t, double>> const& rates,
             std::vector<double> const& divisors);
  /// Drops the pending gradients: those of backward passes since the last apply() or drop().
  void drop();
  /// Multiplies the pending gradients. @param factor () on any device
  void scale(at::Tensor const& factor);
  /// () float64 on the device: the L2 norm of this rank's gradients of a merged table.
  [[nodiscard]] at::Tensor norm(std::size_t merged);
  [[nodiscard]] Traffic traffic() const;
  /// Measures waits for exchanges from now on: of this thread on the CPU, of the caller's streams on CUDA.
  void time_waits(bool is_enabled) { timer_->enable(is_enabled); }
  /// Seconds of the waits since then. Waits for the device.
  [[nodiscard]] double waited_s() { return timer_->seconds(); }

  /// (merged tables) Numbers of the tables in each.
  [[nodiscard]] std::vector<std::vector<std::uint32_t>> const& table_numbers() const { return table_numbers_; }
  /// (outputs) Columns of each.
  [[nodiscard]] std::vector<std::int64_t> output_dims() const;
  /// (outputs) One row per bag; false: one row per id.
  [[nodiscard]] std::vector<bool> are_pooled() const;

 private:
  friend struct ExpandFunction;
  class DropAtEnd;

  /// A gradient that the tables read later, when it is added by key. Nobody may write to it until then.
  struct Unread {
    at::Tensor values;
    std::int64_t version;  ///< In-place version counter of `values` after the backward pass.
    std::size_t merged;
  };

  /// A batch of its own for one finish() of `begun`, without the weights.
  [[nodiscard]] BatchPtr run_of(TensorBatch& begun);
  void expect_unread_unchanged() const;
  void drop_pending();
  [[nodiscard]] std::vector<at::Tensor> expand(TensorBatch& batch);
  /// The gradients of each merged table. @param gradients (outputs), undefined: none
  [[nodiscard]] std::vector<at::Tensor> join(TensorBatch const& batch, std::vector<at::Tensor> const& gradients) const;
  /// Sends the gradients of a backward pass to the owners. @param gradients (outputs), undefined: none
  void take_gradients(BatchPtr const& batch, std::vector<at::Tensor> const& gradients);
  [[nodiscard]] at::Tensor gradient_of_weights(TensorBatch const& batch, TensorBatch::LearnedWeights const& learned,
                                               at::Tensor const& gradients) const;
  /// Marks a batch as used on the current stream.
  void use(TensorBatch& batch) const;
  /// Records a point of the current stream; on the CPU nothing.
  void record(std::optional<c10::Event>& point) const;
  void use_pending() const;
  /// Calls `work` inside a change of each table.
  template <class Work>
  void change(Work const& work, std::size_t first = 0);
  [[nodiscard]] at::Tensor tensor_of(std::span<float const> values, std::shared_ptr<void const> owner,
                                     std::int64_t dim) const;
  /// First feature of a merged table, and behind its last.
  [[nodiscard]] std::pair<std::size_t, std::size_t> features_of(std::size_t merged) const {
    return {first_feature_[merged], first_feature_[merged + 1]};
  }
  [[nodiscard]] std::pair<std::size_t, std::size_t> outputs_of(std::size_t merged) const {
    return by_feature_ ? features_of(merged) : std::pair(merged, merged + 1);
  }

  at::Device device_;
  std::vector<c10::intrusive_ptr<TensorTable>> tables_;
  std::vector<std::vector<std::uint32_t>> table_numbers_;
  FeatureTensors feature_tensors_;
  std::vector<std::size_t> first_feature_;  ///< (merged tables + 1)
  bool by_feature_;
  std::vector<Pooling> poolings_;
  bool has_peers_;
  std::shared_ptr<WaitTimer> timer_;
  std::optional<c10::Stream> ahead_stream_;  ///< CUDA: of read_ahead().
  std::optional<c10::Event> finished_;       ///< CUDA: point of the stream after the last finish() or backward pass.
  std::unique_ptr<ShardedTable> sharded_;
  std::shared_ptr<std::atomic<std::int64_t>> num_waiting_ = std::make_shared<std::atomic<std::int64_t>>(0);
  mutable std::mutex mutex_;  ///< Held during calls of `sharded_`. Its waits may take the GIL, so callers release that.
  std::vector<Unread> unread_;
  std::vector<std::size_t> num_marked_;        ///< (merged tables) Backward passes that new_gradients() has returned.
  std::vector<std::vector<at::Tensor>> sent_;  ///< (merged tables) Marks of sent gradients, (1, 1), not returned yet.
  std::vector<BatchPtr> pending_;              ///< Batches whose gradients wait for apply().
};

}  // namespace headway::embedding
