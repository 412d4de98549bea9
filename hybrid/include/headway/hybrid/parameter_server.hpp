// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/base/fair_shared_mutex.hpp"
#include "headway/base/thread_pool.hpp"
#include "headway/embedding/batch_device.hpp"
#include "headway/embedding/concurrent_table.hpp"
#include "headway/hybrid/indexed_rows.hpp"
#include "headway/hybrid/requests.hpp"
#include "headway/hybrid/server_messages.hpp"

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace headway::hybrid {

class ServerMeter;  // Counts for status() (src/server/server_meter.hpp).

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
  struct Batch;  // A batch that was looked up, and its part once that has come.
  struct Sums;   // The gradients of a step in a merged table, added by key.
  struct TableStep {
    std::uint32_t step = 0;
    std::uint32_t oldest_in_use = 0;  ///< Rows looked up since this step are not evicted.
  };
  using BatchKey = std::pair<std::uint64_t, std::uint32_t>;  ///< Step, worker.

  /// Tables of a checkpoint that was read, and is not in use yet.
  struct Loaded {
    std::uint64_t step = 0;
    std::vector<std::unique_ptr<embedding::ConcurrentTable>>
        tables{};  ///< (merged tables) Null: the present one stays.
  };

  /// Ids of a small table by their row indices.
  struct RowIndices {
    std::unordered_map<std::uint64_t, std::uint32_t> index_of{};
    std::vector<std::uint64_t> ids{};
  };

  // Requests that are alone.
  void handle_alone(Request& request);
  void configure(Request& request);
  void begin_generation(Request& request);
  // Checkpoints: server_checkpoints.cpp.
  void save(Request& request);
  void load(Request& request);
  /// Copies the records of a merged table whose tables are not `loaded`.
  void keep_others(std::size_t merged, std::vector<std::uint32_t> const& loaded, embedding::Table& table) const;
  void take_loaded(Request& request);
  // Rows of small tables: row_indices.cpp.
  void hand_out_rows(Request& request);
  void store_rows(Request& request);
  /// @param ids of the one table of a merged table. They get indices unless they have them.
  [[nodiscard]] IndexedRows rows_with_indices(std::size_t merged, std::span<std::uint64_t const> ids);
  /// @throws base::UsageError if a merged table has several tables
  [[nodiscard]] embedding::ConcurrentTable& small_table(std::size_t merged) const;
  [[nodiscard]] Body write_tables(std::string const& path) const;
  /// Refuses all that waits, and forgets all batches.
  /// @param come_again dense workers look them up in the next generation, so they are not lost
  void end_generation(bool come_again);

  // Requests that share requests_. Those below take mutex_ for a moment.
  void handle_together(Request& request);
  void look_up(Request& request);
  void take_part(Request& request);
  void take_void(Request& request);
  void read(Request& request);
  [[nodiscard]] bool is_refused_as_failed(Request& request) const;
  /// @returns whether the request was refused, because it belongs to an older generation
  /// @throws base::UsageError unless there are tables and a generation
  [[nodiscard]] bool is_refused_as_old(Request& request) const;
  [[nodiscard]] ServerStatus present_status() const;
  /// Rows of a batch. @param are_trained the lookup counts, and inserts absent keys
  [[nodiscard]] Body rows_of(std::span<KeyList const> keys, bool are_trained);
  [[nodiscard]] DecodedLookup decode_keys(Request const& request) const;
  /// Rows as an answer has them: compressed if values are.
  [[nodiscard]] Body packed(Body rows, std::span<KeyList const> keys) const;
  /// @throws base::UsageError for a key of another table, or too many keys
  void expect_keys(std::string const& name, std::span<KeyList const> tables) const;
  // Called with mutex_ locked.
  /// @throws base::UsageError if another part of the same step has other learning rates
  void expect_rates(DecodedPart const& part) const;
  void count_keys(std::size_t num_bytes, DecodedLookup const& lookup);
  // These unlock it while they use tables.
  void answer(BatchKey id, Request& request, std::unique_lock<std::mutex>& lock);
  /// Applies all steps that are complete, and answers the lookups and void notices that waited for them. If it cannot,
  /// the server has failed: rows may have half of a step.
  void advance(std::unique_lock<std::mutex>& lock) noexcept;
  /// Applies the oldest step of a worker's clock, which is complete.
  void advance_clock(std::uint32_t worker, std::unique_lock<std::mutex>& lock);
  /// The step of tables that begins once one more step of the worker's clock is applied; none: the present one goes on.
  [[nodiscard]] std::optional<TableStep> next_table_step(std::uint32_t worker) const;
  /// @param by_worker whose message completed the step, for statistics
  void answer_held(std::optional<std::uint32_t> by_worker, std::unique_lock<std::mutex>& lock);
  /// Writes the checkpoint that waits, if its step has come. Keeps mutex_ locked.
  void write_if_due();
  /// Waits for the end of a step that is being applied, so that who has the answer to a part reads the step's updates.
  void wait_for_step(std::unique_lock<std::mutex>& lock) const;

  /// Applies a part that has come, without the others of its step. Unlocks `lock` meanwhile.
  /// @throws base::UsageError if the part or a void notice has come before; others, if the server has failed
  void apply_alone(BatchId id, Batch& batch, DecodedPart const& part, std::unique_lock<std::mutex>& lock);
  void fail(std::string const& failure);

  // Called by who applies, without mutex_.
  void apply_step(std::uint64_t step, std::span<std::shared_ptr<Batch> const> batches);
  /// Makes one optimizer step for the sum of these parts.
  void apply_sum(std::uint64_t step, std::span<std::shared_ptr<Batch> const> batches);
  [[nodiscard]] Sums sums_of(std::size_t merged, std::span<std::shared_ptr<Batch> const> batches);
  void begin_table_step(TableStep next);

  ParameterServerOptions options_;
  /// Exclusive for requests that are alone. They change configuration_ to ledger_, which others read.
  mutable base::FairSharedMutex requests_;
  /// Exclusive while tables are written. Who has it does not wait for mutex_.
  mutable base::FairSharedMutex table_calls_;
  Body configuration_;         ///< Encoded tables; empty: there are none.
  Compression compression_{};  ///< Told with the tables.
  std::vector<embedding::MergedTable> merged_;
  std::vector<std::size_t> dims_;                                 ///< (merged tables)
  std::vector<std::unordered_set<std::uint32_t>> ids_of_tables_;  ///< (merged tables)
  std::vector<RowIndices> row_indices_;                           ///< (merged tables)
  std::shared_ptr<embedding::BatchDevice> device_;
  std::vector<std::unique_ptr<embedding::ConcurrentTable>> tables_;
  std::uint64_t generation_ = 0;
  std::uint64_t token_ = 0;           ///< Random number of the trainer that has begun it.
  mutable std::mutex mutex_;          ///< Guards what follows.
  std::uint32_t table_step_ = 0;      ///< Last step that Table::begin_step() has begun.
  std::optional<StepLedger> ledger_;  ///< None: no generation has begun.
  /// Dense worker of the last part, void notice or lookup that may complete a step; none: another request may have.
  std::optional<std::uint32_t> last_worker_;
  bool is_advancing_ = false;       ///< A thread applies steps.
  std::uint64_t num_advanced_ = 0;  ///< Steps that it has applied, with the answers that waited for them.
  mutable std::condition_variable step_ended_;
  std::map<BatchKey, std::shared_ptr<Batch>> batches_;
  std::map<BatchKey, Request> held_;        ///< Lookups that wait for parts.
  std::map<BatchKey, Request> held_voids_;  ///< Void notices that are counted, and answered when a lookup would be.
  std::optional<std::pair<std::uint64_t, Request>> held_save_;  ///< Step, and the request to write its checkpoint.
  std::optional<std::uint64_t> saved_step_;  ///< Step of the checkpoint that this generation has asked for.
  std::set<BatchKey> come_again_;            ///< Batches that were counted, and are looked up again after a checkpoint.
  std::unique_ptr<Loaded> loaded_;           ///< Null: none was read, or it is in use.
  std::uint64_t loaded_step_ = 0;            ///< Step of the last checkpoint that was loaded.
  std::string failure_;                      ///< Why the server has failed; empty: it has not.
  ServerStatus counts_;
  std::unique_ptr<ServerMeter> meter_;
};

}  // namespace headway::hybrid
