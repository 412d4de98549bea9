// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/serving/batch_record.hpp"
#include "headway/serving/latency_histogram.hpp"
#include "headway/serving/request.hpp"
#include "headway/serving/row_fetcher.hpp"
#include "headway/serving/served_model.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

namespace headway::serving {

struct EngineOptions {
  std::size_t max_rows = 512;                ///< Most items of a batch. The largest bucket is a limit, too.
  std::chrono::microseconds batch_delay{0};  ///< Longest wait of a request for others of its batch.
  std::size_t max_in_flight = 3;             ///< Batches between their keys and their replies.
  /// Most ids of one feature in a request. Each takes a row of memory on the rank that gets the request.
  std::size_t max_ids = 1 << 18;
  /// Items and bytes of requests that wait for a batch. A request beyond them is refused.
  std::size_t max_queued_rows = 1 << 16;
  std::size_t max_queued_bytes = std::size_t{256} << 20;
  /// For benchmarks: time until the keys of a batch are known, as if a service had to be asked for features.
  std::function<std::chrono::nanoseconds()> delay_before_keys{};
  /// Called on the thread of the loop after each batch that was answered. It must be quick, and not throw.
  std::function<void(BatchRecord const&)> on_batch{};
};

/// Stages of a request, in their order. `kEngine` is what is left of its time.
enum class Stage : std::uint8_t { kQueue, kDelay, kFetch, kDenseQueue, kDense, kEngine, kTotal };
constexpr std::size_t kNumStages = 7, kNumOutcomes = 6;

/// Counters since the engine was made.
struct EngineStatistics {
  std::array<std::uint64_t, kNumOutcomes> requests{};  ///< By Outcome.
  std::array<LatencyHistogram, kNumStages> stages{};   ///< By Stage, of answered requests.
  std::uint64_t batches = 0, rows = 0;                 ///< Rows of answered batches.
  /// Batches by the number that was in flight when they began, from 1; the last counts all above. More than one means
  /// that the rank made use of its lag.
  std::array<std::uint64_t, 8> in_flight{};
  std::uint64_t refused_versions = 0;
  /// By rank: time from the keys of a batch to the rows of another rank.
  std::map<int, LatencyHistogram> peer_waits{};
  std::size_t queued_rows = 0;  ///< Now.
};

/// Serves one rank: batches requests, fetches rows from their owners, runs the dense part and replies. engine.cpp
/// explains its loop. Thread-safe.
class Engine {
 public:
  /// Starts three threads: the loop, and two that run the dense part.
  /// @param fetcher has the version of `model`
  /// @throws base::UsageError if an option is out of its range
  Engine(std::shared_ptr<ServedModel const> model, std::unique_ptr<RowFetcher> fetcher, EngineOptions options);
  /// drain()s.
  ~Engine();
  Engine(Engine const&) = delete;
  Engine& operator=(Engine const&) = delete;

  /// Takes a request. `reply` is called exactly once: at once if the request is refused, or else on the thread of the
  /// loop, at the deadline at the latest. A request that cannot meet its deadline is refused at once.
  void submit(Request request, Clock::time_point deadline, ReplyFunction reply);
  /// Does the engine take requests?
  [[nodiscard]] bool is_ready() const;
  /// Why not; empty if it does.
  [[nodiscard]] std::string why_not_ready() const;
  /// Model that answers now.
  [[nodiscard]] std::shared_ptr<ServedModel const> model() const;
  [[nodiscard]] EngineStatistics statistics() const;

  /// Adds a version, which batches may use from switch_to() on, and answers peers that ask for it from now on. Requests
  /// for the present version fit it (describe_difference()).
  /// @throws base::UsageError if the version is there, or the fetcher does not take it
  void add_model(std::shared_ptr<ServedModel const> model, std::vector<embedding::ReadTable> tables);
  /// Do all ranks have to plan_switch() before switch_to()? See RowFetcher::hold_for_switch() for this and the next.
  [[nodiscard]] bool plans_switches() const;
  [[nodiscard]] std::uint64_t hold_for_switch();
  [[nodiscard]] bool plan_switch(std::uint64_t number, std::uint64_t first);
  void cancel_switch();
  /// Lets later batches use a version that was added.
  void switch_to(std::uint64_t number);
  /// Waits until no batch of a version is in flight, and none will begin.
  void wait_for_batches_of(std::uint64_t number);
  /// Counts a version that was not taken.
  void count_refused_version();
  /// Removes a version that no rank has a batch of.
  void remove_model(std::uint64_t number);

  /// Goes on after the loss of a rank, with a new group. Until then requests are refused. From the return of this call
  /// on they are taken again.
  /// @param model takes the place of all others
  /// @param fetcher has the version of the model
  /// @throws base::UsageError if no rank was lost
  void reconnect(std::shared_ptr<ServedModel const> model, std::unique_ptr<RowFetcher> fetcher);
  /// Waits until a rank is lost, or `stop` is requested. @returns whether a rank is lost
  [[nodiscard]] bool wait_for_loss(std::stop_token const& stop) const;

  /// Refuses new requests from now on.
  void refuse_new();
  /// refuse_new(), and waits until those accepted are answered, and all ranks of the group drain.
  /// Meanwhile the rank answers its peers.
  void drain();

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace headway::serving
