// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/thread_pool.hpp"
#include "headway/embedding/batch_device.hpp"
#include "headway/hybrid/requests.hpp"
#include "headway/hybrid/server_messages.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace headway::hybrid {

struct ParameterServerOptions {
  std::shared_ptr<base::ThreadPool> thread_pool{};  ///< Threads of the tables; none: the caller's alone.
  /// A gradient that is not finite is an error of its part, instead of a part that is dropped and counted.
  bool is_strict = false;
  std::size_t max_rows_bytes = std::size_t{256} << 20;  ///< Rows of one lookup; more are an error.
};

/// Rows of embedding tables that dense workers train asynchronously, within a staleness that is enforced. It answers
/// requests of embedding workers and dense workers (server_messages.hpp). parameter_server.cpp explains the rules.
///
/// Thread-safe: each link has a thread.
class ParameterServer {
 public:
  explicit ParameterServer(ParameterServerOptions options = {});
  ~ParameterServer();
  ParameterServer(ParameterServer const&) = delete;
  ParameterServer& operator=(ParameterServer const&) = delete;

  /// A Responder::Handler. Keeps lookups that must wait.
  /// @throws base::UsageError for a request that makes no sense; it names the batch, but no id
  void handle(Request& request);
  [[nodiscard]] ServerStatus status() const;

 private:
  struct Keys;   // Keys of a batch in a merged table.
  struct Batch;  // A batch that was looked up, or a part of it that waits for its step.
  struct Sums;   // The gradients of a step in a merged table, added by key.
  using BatchKey = std::pair<std::uint64_t, std::uint32_t>;  ///< Step, worker.

  // All of these are called with mutex_ locked.
  void configure(Request& request);
  void begin_generation(Request& request);
  void look_up(Request& request);
  void take_part(Request& request);
  /// @throws base::UsageError if another part of the same step has other learning rates
  void expect_rates(DecodedPart const& part) const;
  void take_void(Request& request);
  void read(Request& request);
  /// @throws base::UsageError unless there are tables and a generation
  void expect_running() const;
  void answer(BatchKey id, Request& request);
  [[nodiscard]] Body rows_of(std::span<Keys const> keys);
  /// @throws base::UsageError for a key of another table, or too many keys
  void expect_keys(std::string const& name, std::span<KeyList const> tables) const;
  /// Applies all steps that are complete, and answers the lookups and void notices that waited for them. If it cannot,
  /// the server has failed: rows may have half of a step.
  void advance() noexcept;
  void apply_step();
  [[nodiscard]] Sums sums_of(std::size_t merged);
  void answer_held();
  void begin_table_step();
  [[nodiscard]] ServerStatus status_locked() const;

  ParameterServerOptions options_;
  mutable std::mutex mutex_;
  Body configuration_;  ///< The request's body; empty: there are no tables.
  std::vector<embedding::MergedTable> merged_;
  std::vector<std::unordered_set<std::uint32_t>> ids_of_tables_;  ///< (merged tables)
  std::shared_ptr<embedding::BatchDevice> device_;
  std::vector<std::unique_ptr<embedding::Table>> tables_;
  std::uint64_t generation_ = 0;
  std::uint64_t token_ = 0;           ///< Random number of the trainer that has begun it.
  std::optional<StepLedger> ledger_;  ///< None: no generation has begun.
  std::uint32_t table_step_ = 0;      ///< Last step given to Table::begin_step().
  std::map<BatchKey, Batch> batches_;
  std::map<BatchKey, Request> held_;        ///< Lookups that wait for parts.
  std::map<BatchKey, Request> held_voids_;  ///< Void notices that are counted, and answered when a lookup would be.
  std::string failure_;                     ///< Why the server has failed; empty: it has not.
  ServerStatus counts_;
};

}  // namespace headway::hybrid
