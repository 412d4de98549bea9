// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/metrics_server.hpp"
#include "headway/base/thread_pool.hpp"
#include "headway/hybrid/embedding_client.hpp"
#include "headway/hybrid/requests.hpp"
#include "headway/hybrid/worker_messages.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace headway::hybrid {

struct EmbeddingWorkerOptions {
  /// Connects with all parameter servers. Called once, when the first trainer has told the tables.
  /// @throws base::SystemError that names the server
  std::function<std::vector<ServerEnd>()> connect;
  std::chrono::milliseconds timeout{120'000};            ///< Limit of each wait for a server.
  std::size_t max_buffer_bytes = std::size_t{1} << 30;   ///< Batches of loaders that nobody has fetched; see kSubmit.
  std::size_t max_batch_bytes = std::size_t{256} << 20;  ///< Ids of one batch, when they are decoded.
  std::shared_ptr<base::ThreadPool> thread_pool{};       ///< None: calls run on one thread.
};

/// Looks up batches at the parameter servers for dense workers. Loaders send it ids, and dense workers get embeddings.
/// embedding_worker.cpp explains the life of a batch. Thread-safe: each link has a thread.
class EmbeddingWorker {
 public:
  explicit EmbeddingWorker(EmbeddingWorkerOptions options);
  ~EmbeddingWorker();
  EmbeddingWorker(EmbeddingWorker const&) = delete;
  EmbeddingWorker& operator=(EmbeddingWorker const&) = delete;

  /// A Responder::Handler. Keeps requests that must wait.
  /// @throws base::UsageError for a request that makes no sense; it names the batch, but no id
  void handle(Request& request);

  [[nodiscard]] WorkerStatus status() const;

  /// From now on batches of loaders are refused with kLeaving, those that wait for room too. Others go on.
  void leave();
  /// Batches that are buffered, or that a dense worker has fetched and not ended.
  [[nodiscard]] std::size_t num_batches() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// State of an embedding worker for Prometheus. All names but those of the process begin with headway_hybrid_.
[[nodiscard]] std::vector<base::MetricFamily> metrics_of(WorkerStatus const& status, RequestTraffic const& traffic,
                                                         std::size_t num_links);

}  // namespace headway::hybrid
