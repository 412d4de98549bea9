// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/thread_pool.hpp"
#include "headway/comm/endpoint.hpp"
#include "headway/embedding/routed_batch.hpp"
#include "headway/embedding/sharded_table.hpp"
#include "headway/hybrid/server_client.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace headway::hybrid {

/// A parameter server as its clients see it.
struct ServerEnd {
  std::string name;  ///< For errors, for example "server 1 at ps-1:7000".
  std::unique_ptr<ServerClient> client;
};

/// Looks features up at all parameter servers, and returns gradients to them: the work of an embedding worker.
/// embedding_client.cpp explains the life of a batch. `merged` is the index of a merged table (tables of equal options
/// that share storage). Not thread-safe.
///
/// Errors name the server: base::OperationError if a link has failed or a time limit has passed, RequestRefused if a
/// server refuses.
class EmbeddingClient {
 public:
  /// Gives the servers their tables, or compares them with those that they have.
  /// @param servers in the order of their shares of the ids
  /// @param timeout of each wait for a server
  /// @param compression of keys, rows and gradients; servers compare it, too
  /// @throws base::UsageError if there is no server, or a table is merged twice
  EmbeddingClient(std::vector<ServerEnd> servers, std::vector<embedding::MergedTable> tables,
                  std::chrono::milliseconds timeout, std::shared_ptr<base::ThreadPool> thread_pool = nullptr,
                  Compression compression = {});
  ~EmbeddingClient();
  EmbeddingClient(EmbeddingClient const&) = delete;
  EmbeddingClient& operator=(EmbeddingClient const&) = delete;

  /// Begins a generation at all servers, or joins it. Batches of the one before are forgotten.
  /// @param token the same for all workers of a trainer, and drawn anew by each trainer
  void begin_generation(std::uint64_t generation, StepLedger::Options const& options, std::uint64_t token = 0);

  /// Sends the keys of a batch to their owners. Does not wait. The features may be freed afterwards.
  /// @throws base::UsageError if the batch exists, staleness + 1 batches of the worker are in flight, lengths do not
  /// add
  ///   up to the ids, or a feature names a table that is not there
  void start(BatchId batch, std::span<embedding::Feature const> features);
  /// Have all rows come? Does not wait.
  [[nodiscard]] bool is_ready(BatchId batch);
  using WhileWaiting = Requester::WhileWaiting;
  /// Waits for the rows. Servers hold them back until the staleness allows.
  void wait(BatchId batch, WhileWaiting const& while_waiting = {});
  [[nodiscard]] std::size_t num_bags(BatchId batch, std::size_t merged) const;
  /// Writes the embeddings of a merged table. See RoutedBatch::expand(). @param out (bags, dim)
  void expand(BatchId batch, std::size_t merged, std::span<float> out);
  /// See RoutedBatch::distinct_bags().
  [[nodiscard]] std::vector<std::uint32_t> distinct_bags(BatchId batch, std::size_t merged) const;

  /// Gradients of one merged table.
  struct Gradients {
    double rate = 0;                  ///< Learning rate.
    std::span<float const> values{};  ///< (bags, dim) in the order of expand(), or empty: there are none.
  };
  /// Sends the sums of the gradients of each key to its owner. Does not wait; the values may be freed afterwards.
  /// @param gradients (merged tables)
  /// @throws base::UsageError if the rows of the batch have not come, or it has returned gradients
  void return_gradients(BatchId batch, std::span<Gradients const> gradients);
  /// Sends void notices instead. Also for a batch whose rows have not come, or that was never started.
  /// After return_gradients() it goes to servers that have refused the gradients, or to which they were not sent.
  /// @param cause for the counts of servers
  void drop(BatchId batch, LossCause cause = LossCause::kSkipped);
  /// Have all servers answered the part or void notice? Does not wait.
  [[nodiscard]] bool is_finished(BatchId batch);
  /// Waits until all servers have taken the part or void notice of a batch, which ends there.
  /// @returns false if a server has dropped gradients that are not finite
  bool finish(BatchId batch, WhileWaiting const& while_waiting = {});
  [[nodiscard]] std::size_t num_in_flight(std::uint32_t worker) const;

  /// Reads embeddings without insertion or count, whatever the steps. Waits.
  [[nodiscard]] embedding::RoutedBatch read(std::span<embedding::Feature const> features);
  /// No lookups will come from this step on.
  void end_at(std::uint64_t step);
  /// (servers)
  [[nodiscard]] std::vector<ServerStatus> status();

  // Rows of small tables (src/worker/row_directory.hpp).
  [[nodiscard]] std::size_t num_servers() const { return servers_.size(); }
  [[nodiscard]] Requester::CallPtr start_rows(std::size_t server, std::span<RowQuery const> queries);
  [[nodiscard]] bool has_answered(std::size_t server, Requester::Call& call);
  [[nodiscard]] Body wait_rows(std::size_t server, Requester::Call& call);

  /// Waits for a server, and bytes exchanged with it.
  struct ServerUse {
    std::string name{};
    /// Time of wait() and finish(). They wait for one server after the other, so a later one has the time by which it
    /// answered after those before it.
    std::chrono::nanoseconds waited{0};
    std::uint64_t bytes_sent = 0, bytes_received = 0;
  };
  /// (servers)
  [[nodiscard]] std::vector<ServerUse> uses() const;
  /// The server whose rows is_ready() found missing last; none: it never found any missing.
  [[nodiscard]] std::optional<std::size_t> last_missing(BatchId batch) const;

 private:
  struct Batch;

  [[nodiscard]] embedding::RoutedBatch route(std::span<embedding::Feature const> features) const;
  /// Calls `call` for each server, also after an exception; then throws the first one.
  template <class Call>
  void at_each_server(Call&& call);
  /// Finds the last server that has not answered its lookup, or its part.
  template <class Call>
  [[nodiscard]] std::optional<std::size_t> find_missing(Batch const& batch, Call call);
  [[nodiscard]] Batch& at(BatchId batch);
  [[nodiscard]] Batch const& at(BatchId batch) const;
  /// Keys of a server.
  [[nodiscard]] std::vector<KeyList> keys_of(embedding::RoutedBatch const& batch, std::size_t server) const;
  /// Copies the rows of a server into the batch. @throws base::OperationError if they are of another size
  void take_rows(embedding::RoutedBatch& batch, std::size_t server, Body const& answer);
  /// Runs `call` for a server; its errors name the server.
  template <class Call>
  auto at_server(std::size_t server, Call&& call);

  std::vector<ServerEnd> servers_;
  std::vector<std::chrono::nanoseconds> waited_;  ///< (servers) See ServerUse.
  std::vector<embedding::MergedTable> tables_;
  std::map<std::uint32_t, std::size_t> merged_of_;
  std::vector<std::size_t> dims_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<embedding::BatchDevice> device_;
  Compression compression_;
  std::uint64_t generation_ = 0;
  std::uint32_t staleness_ = 0;
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::unique_ptr<Batch>> batches_;  ///< By worker and step.
};

}  // namespace headway::hybrid
