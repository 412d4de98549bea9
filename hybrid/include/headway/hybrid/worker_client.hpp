// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/hybrid/requests.hpp"
#include "headway/hybrid/worker_messages.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace headway::hybrid {

/// Calls of one embedding worker over a link, for loaders and dense workers. Thread-safe.
///
/// All calls throw RequestRefused if the worker refuses, and base::OperationError if the link has failed or `timeout`
/// passes. Both name the worker.
class WorkerClient {
 public:
  using WhileWaiting = Requester::WhileWaiting;

  /// @param name for errors, for example "embedding worker 1 at worker-1:7100"
  /// @param timeout of calls that wait
  WorkerClient(std::string name, std::unique_ptr<comm::Group> link, std::chrono::milliseconds timeout);

  /// Gives the worker its tables, features and compression, or compares them with those that it has. Call it before
  /// those below.
  void set_up(std::span<embedding::MergedTable const> tables, std::span<FeatureSetting const> features,
              Compression compression = {}, std::span<std::size_t const> small = {});
  void begin_generation(std::uint64_t generation, StepLedger::Options const& options, std::uint64_t token);
  /// Sends the ids of a batch. Waits until the worker has room for them.
  /// @param features in the order of set_up()
  void submit(BatchName name, std::span<FeatureIds const> features, WhileWaiting const& while_waiting = {});
  /// Takes a batch for a step. The answer has its embeddings.
  [[nodiscard]] Requester::CallPtr start_fetch(std::uint64_t generation, BatchName name, BatchId batch);
  [[nodiscard]] Embeddings wait_embeddings(Requester::Call& fetch, BatchId batch,
                                           WhileWaiting const& while_waiting = {});
  /// Sends gradients of the bags of a batch, (merged tables). The answer says that all servers have taken them.
  /// @param embeddings those of the batch
  [[nodiscard]] Requester::CallPtr start_gradients(std::uint64_t generation, BatchId batch,
                                                   std::span<PartValues const> gradients, Embeddings const& embeddings);
  /// Sends void notices instead.
  [[nodiscard]] Requester::CallPtr start_drop(std::uint64_t generation, BatchId batch,
                                              LossCause cause = LossCause::kSkipped);
  /// Has the answer to gradients or a drop come? Does not wait.
  [[nodiscard]] bool is_finished(Requester::Call& end) {
    return with_name(name_, [&] { return requester_.test(end); });
  }
  /// Waits for it.
  /// @returns false if a server has dropped gradients that are not finite
  bool finish(Requester::Call& end, BatchId batch, WhileWaiting const& while_waiting = {});
  /// Embeddings of a batch without insertion, whatever the step. The batch ends.
  [[nodiscard]] Embeddings read(BatchName name, WhileWaiting const& while_waiting = {});
  void end_at(std::uint64_t generation, std::uint64_t step);
  [[nodiscard]] WorkerStatus status();

  [[nodiscard]] std::string const& name() const { return name_; }

 private:
  [[nodiscard]] Requester::CallPtr start(WorkerRequest kind, std::uint64_t generation, Body body);
  [[nodiscard]] Body await(Requester::Call& call, std::string const& missing, WhileWaiting const& while_waiting = {});

  std::string name_;
  std::chrono::milliseconds timeout_;
  Requester requester_;
  Compression compression_{};
  std::vector<std::size_t> half_dims_{};  ///< (merged tables) See encode_part().
};

}  // namespace headway::hybrid
