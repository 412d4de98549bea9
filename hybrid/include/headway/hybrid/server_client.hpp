// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/hybrid/checkpoint_messages.hpp"
#include "headway/hybrid/indexed_rows.hpp"
#include "headway/hybrid/requests.hpp"
#include "headway/hybrid/server_messages.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace headway::hybrid {

/// Calls of one parameter server, over a link or in the same process. Thread-safe.
///
/// All calls throw RequestRefused if the server refuses, and base::OperationError if the link has failed or `timeout`
/// passes.
class ServerClient {
 public:
  /// @param timeout of calls that wait
  ServerClient(std::unique_ptr<comm::Group> link, std::chrono::milliseconds timeout);
  /// @param server handler of a server of this process, which calls run on the caller's thread
  ServerClient(RequestHandler server, std::chrono::milliseconds timeout);

  /// Gives the server its tables and compression, or compares them with those that it has. Call it before those below.
  void configure(std::span<embedding::MergedTable const> tables, Compression compression = {});
  /// Begins a generation, or joins it if another dense worker has begun it with the same options and token.
  void begin_generation(std::uint64_t generation, StepLedger::Options const& options, std::uint64_t token = 0);
  /// Sends the keys of a batch. The answer comes when the staleness allows.
  /// @param num_samples of the batch, for statistics
  [[nodiscard]] Requester::CallPtr start_lookup(std::uint64_t generation, BatchId batch,
                                                std::span<KeyList const> tables, std::uint64_t num_samples = 0);
  /// The rows of a lookup, in the order of its keys. Without compression of values.
  /// @returns nothing if `timeout` passes first
  [[nodiscard]] std::optional<std::vector<float>> wait_rows(Requester::Call& lookup, std::chrono::milliseconds timeout);
  /// Sends the gradients of a batch. The answer says that the server has taken them.
  [[nodiscard]] Requester::CallPtr start_part(std::uint64_t generation, BatchId batch,
                                              std::span<PartValues const> tables);
  [[nodiscard]] Requester::CallPtr start_void(std::uint64_t generation, BatchId batch,
                                              LossCause cause = LossCause::kSkipped);
  /// Waits until the server has answered a part or void notice.
  void finish(Requester::Call& call);
  /// Rows of keys, without insertion or count. Without compression of values.
  [[nodiscard]] std::vector<float> read(std::span<KeyList const> tables);
  /// The same as an answer for decode_rows().
  [[nodiscard]] Body read_answer(std::span<KeyList const> tables);
  void end_at(std::uint64_t generation, std::uint64_t step);
  [[nodiscard]] ServerStatus status();
  // Checkpoints: answers come when the server has written or read its file.
  [[nodiscard]] Requester::CallPtr start_save(std::uint64_t generation, SaveArgs const& save);
  [[nodiscard]] Requester::CallPtr start_load(std::uint64_t generation, LoadArgs const& load);
  [[nodiscard]] Requester::CallPtr start_take_loaded(std::uint64_t generation);
  // Rows of small tables.
  [[nodiscard]] Requester::CallPtr start_rows(std::span<RowQuery const> queries);
  [[nodiscard]] Requester::CallPtr start_store_rows(std::uint64_t generation, std::span<RowsToStore const> tables);

  [[nodiscard]] Requester& requester() { return requester_; }

 private:
  [[nodiscard]] Body ask(ServerRequest kind, std::uint64_t generation, Body body);
  [[nodiscard]] Requester::CallPtr start(ServerRequest kind, std::uint64_t generation, Body body);

  std::chrono::milliseconds timeout_;
  Requester requester_;
  Compression compression_{};
  std::vector<std::size_t> half_dims_{};  ///< (merged tables) See encode_part().
};

}  // namespace headway::hybrid
