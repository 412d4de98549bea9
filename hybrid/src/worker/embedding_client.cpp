// SPDX-License-Identifier: Apache-2.0

// The asking side of hybrid training.
//
// Idea: a batch is started as soon as its features are known, and its rows are used when the dense model gets to it.
// Meanwhile servers hold them back until the staleness allows. Then its gradients go back to the same servers.
//
// The life of a batch:   start() -> wait() -> expand() -> return_gradients() -> finish()
//                        start() -> drop() -> finish()        for a batch that is not trained
//
// Example: 2 servers, ids 5, 6 and 5. The unique keys are 5 (server 0) and 6 (server 1). Each gets a lookup, and a part
// with one gradient; that of 5 is the sum of two. A server without keys of the batch gets both without keys, since it
// counts the parts of a step.
//
// Invariants: each server gets one part or one void notice for each batch. At most staleness + 1 batches of a worker
// are in flight, that is between start() and finish().
// Complexity: 2 round trips of a batch with each server; 16 bytes for a key, and dim floats each way.

#include "headway/hybrid/embedding_client.hpp"

#include "headway/base/status.hpp"
#include "headway/hybrid/stopwatch.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>
#include <optional>
#include <utility>

namespace headway::hybrid {

using embedding::RoutedBatch;

namespace {

/// Samples of a batch: lists of its features.
std::uint64_t num_samples_of(std::span<embedding::Feature const> features) {
  std::size_t most = 0;
  for (auto const& each : features) most = std::max(most, each.lengths.size);
  return most;
}

/// Time until then, at least 1 ms.
std::chrono::milliseconds left_until(comm::Deadline until) {
  using std::chrono::milliseconds;
  return std::max(milliseconds(1), std::chrono::ceil<milliseconds>(until - comm::Clock::now()));
}

}  // namespace

struct EmbeddingClient::Batch {
  /// State of the batch at one server.
  struct AtServer {
    Requester::CallPtr lookup{};  ///< Null: not sent, or `has_rows`.
    bool has_rows = false;
    Requester::CallPtr part{};  ///< A part or void notice; null: not sent, refused, or `is_taken`.
    bool is_taken = false;
  };

  std::optional<RoutedBatch> keys{};  ///< None for a void notice without a lookup.
  std::vector<AtServer> servers{};
  bool has_rows = false;   ///< All servers have sent theirs.
  bool has_ended = false;  ///< It has returned gradients, or is void.
  bool is_finite = true;   ///< No server has dropped its gradients.
  std::optional<std::size_t> last_missing{};
};

template <class Call>
auto EmbeddingClient::at_server(std::size_t server, Call&& call) {
  return with_name(servers_[server].name, [&] { return call(*servers_[server].client); });
}

template <class Call>
void EmbeddingClient::at_each_server(Call&& call) {
  std::exception_ptr first;
  for (std::size_t server = 0; server < servers_.size(); ++server) {
    try {
      at_server(server, [&](ServerClient& client) { call(server, client); });
    } catch (...) {
      if (first == nullptr) first = std::current_exception();
    }
  }
  if (first != nullptr) std::rethrow_exception(first);
}

// Looks at all servers, also if one has not answered: another one may be lost.
template <class Call>
std::optional<std::size_t> EmbeddingClient::find_missing(Batch const& batch, Call call) {
  std::optional<std::size_t> missing;
  for (std::size_t server = 0; server < batch.servers.size(); ++server) {
    auto const& of_server = batch.servers[server].*call;
    if (of_server == nullptr) continue;
    if (!at_server(server, [&](ServerClient& client) { return client.requester().test(*of_server); })) missing = server;
  }
  return missing;
}

EmbeddingClient::EmbeddingClient(std::vector<ServerEnd> servers, std::vector<embedding::MergedTable> tables,
                                 std::chrono::milliseconds timeout, std::shared_ptr<base::ThreadPool> thread_pool,
                                 Compression compression)
    : servers_(std::move(servers)),
      tables_(std::move(tables)),
      timeout_(timeout),
      device_(embedding::make_host_batch_device(std::move(thread_pool))),
      compression_(compression) {
  base::expects(!servers_.empty(), "hybrid training needs at least one parameter server");
  waited_.resize(servers_.size());
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    dims_.push_back(tables_[merged].options.dim);
    for (auto const table : tables_[merged].tables) {
      base::expects(merged_of_.emplace(table, merged).second,
                    "table " + std::to_string(table) + " is merged into two tables");
    }
  }
  for (std::size_t server = 0; server < servers_.size(); ++server) {
    at_server(server, [&](ServerClient& client) { client.configure(tables_, compression_); });
  }
}

EmbeddingClient::~EmbeddingClient() = default;

void EmbeddingClient::begin_generation(std::uint64_t generation, StepLedger::Options const& options,
                                       std::uint64_t token) {
  for (std::size_t server = 0; server < servers_.size(); ++server) {
    at_server(server, [&](ServerClient& client) { client.begin_generation(generation, options, token); });
  }
  batches_.clear();
  generation_ = generation;
  staleness_ = options.staleness;
}

EmbeddingClient::Batch& EmbeddingClient::at(BatchId batch) {
  return const_cast<Batch&>(std::as_const(*this).at(batch));
}

EmbeddingClient::Batch const& EmbeddingClient::at(BatchId batch) const {
  auto const found = batches_.find({batch.worker, batch.step});
  base::expects(found != batches_.end(), to_string(batch) + ": it was not started, or has ended");
  return *found->second;
}

RoutedBatch EmbeddingClient::route(std::span<embedding::Feature const> features) const {
  return {device_, features, merged_of_, dims_, static_cast<std::uint32_t>(servers_.size())};
}

std::vector<KeyList> EmbeddingClient::keys_of(RoutedBatch const& batch, std::size_t server) const {
  std::vector<KeyList> lists;
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    auto const keys = batch.keys(merged, server);
    lists.push_back({.ids = keys.ids, .tables = keys.tables, .counts = keys.counts});
  }
  return lists;
}

std::size_t EmbeddingClient::num_in_flight(std::uint32_t worker) const {
  return static_cast<std::size_t>(
      std::distance(batches_.lower_bound({worker, 0}), batches_.lower_bound({worker + 1, 0})));
}

void EmbeddingClient::start(BatchId batch, std::span<embedding::Feature const> features) {
  base::expects(generation_ > 0, "no generation has begun");
  base::expects(batch.worker < StepLedger::kMostWorkers, to_string(batch) + ": there is no such worker");
  base::expects(!batches_.contains({batch.worker, batch.step}), to_string(batch) + ": it was started before");
  base::expects(num_in_flight(batch.worker) <= staleness_,
                to_string(batch) + ": " + std::to_string(staleness_ + 1) + " batches are in flight");
  auto made = std::make_unique<Batch>();
  made->keys = route(features);
  made->servers.resize(servers_.size());
  auto const num_samples = num_samples_of(features);
  auto& entry = *batches_.emplace(std::pair(batch.worker, batch.step), std::move(made)).first->second;
  at_each_server([&](std::size_t server, ServerClient& client) {
    entry.servers[server].lookup = client.start_lookup(generation_, batch, keys_of(*entry.keys, server), num_samples);
  });
}

bool EmbeddingClient::is_ready(BatchId batch) {
  auto& entry = at(batch);
  if (entry.has_rows) return true;
  auto const missing = find_missing(entry, &Batch::AtServer::lookup);
  if (missing) entry.last_missing = missing;
  return !missing;
}

void EmbeddingClient::wait(BatchId batch, WhileWaiting const& while_waiting) {
  auto& entry = at(batch);
  if (entry.has_rows) return;
  base::expects(!entry.has_ended, to_string(batch) + ": it is void");
  auto const until = comm::deadline_after(timeout_);
  auto const look = [&] {
    static_cast<void>(find_missing(entry, &Batch::AtServer::lookup));
    if (while_waiting) while_waiting();
  };
  for (std::size_t server = 0; server < servers_.size(); ++server) {
    auto& of_server = entry.servers[server];
    if (of_server.has_rows) continue;
    Stopwatch const stopwatch(waited_[server]);
    at_server(server, [&](ServerClient& client) {
      if (of_server.lookup == nullptr) {
        throw base::OperationError({base::StatusCode::kAborted, to_string(batch) + ": it could not be sent"});
      }
      auto const body =
          client.requester().await(*of_server.lookup, left_until(until), to_string(batch) + ": no rows came", look);
      take_rows(*entry.keys, server, body);
    });
    of_server.lookup = nullptr;
    of_server.has_rows = true;
  }
  entry.has_rows = true;
}

void EmbeddingClient::take_rows(RoutedBatch& batch, std::size_t server, Body const& answer) {
  std::vector<std::span<float>> outs;
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) outs.push_back(batch.rows(merged, server));
  try {
    decode_rows(answer, dims_, compression_, outs);
  } catch (base::UsageError const& error) {
    throw base::OperationError({base::StatusCode::kAborted, error.what()});
  }
}

std::vector<std::uint32_t> EmbeddingClient::distinct_bags(BatchId batch, std::size_t merged) const {
  auto const& entry = at(batch);
  base::expects(entry.keys.has_value(), to_string(batch) + ": it is void");
  return entry.keys->distinct_bags(merged);
}

std::size_t EmbeddingClient::num_bags(BatchId batch, std::size_t merged) const {
  auto const& entry = at(batch);
  base::expects(entry.keys.has_value(), to_string(batch) + ": it is void");
  return entry.keys->num_bags(merged);
}

void EmbeddingClient::expand(BatchId batch, std::size_t merged, std::span<float> out) {
  auto const& entry = at(batch);
  base::expects(entry.has_rows, to_string(batch) + ": its rows have not come");
  entry.keys->expand(merged, out);
}

void EmbeddingClient::return_gradients(BatchId batch, std::span<Gradients const> gradients) {
  auto& entry = at(batch);
  base::expects(entry.has_rows, to_string(batch) + ": its rows have not come");
  base::expects(!entry.has_ended, to_string(batch) + ": it has returned gradients, or is void");
  base::expects(gradients.size() == tables_.size(), "return_gradients: gradients of each merged table, or empty ones");
  std::vector<embedding::Block<float>> sums;
  for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
    auto const& values = gradients[merged].values;
    sums.push_back(values.empty() ? embedding::Block<float>() : entry.keys->reduce(merged, values));
  }
  entry.has_ended = true;
  at_each_server([&](std::size_t server, ServerClient& client) {
    std::vector<PartValues> part;
    for (std::size_t merged = 0; merged < tables_.size(); ++merged) {
      std::span<float const> values;
      if (!sums[merged].empty()) values = entry.keys->of_owner(sums[merged].span, merged, server);
      part.push_back({.rate = gradients[merged].rate, .gradients = values});
    }
    entry.servers[server].part = client.start_part(generation_, batch, part);
  });
}

void EmbeddingClient::drop(BatchId batch, LossCause cause) {
  base::expects(generation_ > 0, "no generation has begun");
  base::expects(batch.worker < StepLedger::kMostWorkers, to_string(batch) + ": there is no such worker");
  auto& found = batches_[{batch.worker, batch.step}];
  if (found == nullptr) {
    found = std::make_unique<Batch>();
    found->servers.resize(servers_.size());
  }
  auto& entry = *found;
  auto const is_open = [](Batch::AtServer const& each) { return each.part == nullptr && !each.is_taken; };
  base::expects(std::ranges::any_of(entry.servers, is_open),
                to_string(batch) + ": it has returned gradients, or is void");
  entry.has_ended = true;
  at_each_server([&](std::size_t server, ServerClient& client) {
    auto& of_server = entry.servers[server];
    if (is_open(of_server)) of_server.part = client.start_void(generation_, batch, cause);
  });
}

bool EmbeddingClient::is_finished(BatchId batch) { return !find_missing(at(batch), &Batch::AtServer::part); }

bool EmbeddingClient::finish(BatchId batch, WhileWaiting const& while_waiting) {
  auto& entry = at(batch);
  base::expects(entry.has_ended, to_string(batch) + ": it has no gradients, and is not void");
  auto const until = comm::deadline_after(timeout_);
  auto const look = [&] {
    static_cast<void>(find_missing(entry, &Batch::AtServer::part));
    if (while_waiting) while_waiting();
  };
  for (std::size_t server = 0; server < servers_.size(); ++server) {
    auto& of_server = entry.servers[server];
    if (of_server.is_taken) continue;
    Stopwatch const stopwatch(waited_[server]);
    at_server(server, [&](ServerClient& client) {
      if (of_server.part == nullptr) {
        throw base::OperationError({base::StatusCode::kAborted, to_string(batch) + ": its gradients were not sent"});
      }
      try {
        auto const dropped = client.requester().await(*of_server.part, left_until(until),
                                                      to_string(batch) + ": its gradients were not taken", look);
        entry.is_finite = entry.is_finite && dropped.empty();
      } catch (RequestRefused const&) {
        of_server.part = nullptr;  // drop() can end it there.
        throw;
      }
    });
    of_server.part = nullptr;
    of_server.is_taken = true;
  }
  bool const is_finite = entry.is_finite;
  batches_.erase({batch.worker, batch.step});
  return is_finite;
}

RoutedBatch EmbeddingClient::read(std::span<embedding::Feature const> features) {
  auto batch = route(features);
  for (std::size_t server = 0; server < servers_.size(); ++server) {
    auto const keys = keys_of(batch, server);
    at_server(server, [&](ServerClient& client) { take_rows(batch, server, client.read_answer(keys)); });
  }
  return batch;
}

Requester::CallPtr EmbeddingClient::start_rows(std::size_t server, std::span<RowQuery const> queries) {
  return at_server(server, [&](ServerClient& client) { return client.start_rows(queries); });
}

bool EmbeddingClient::has_answered(std::size_t server, Requester::Call& call) {
  return at_server(server, [&](ServerClient& client) { return client.requester().test(call); });
}

Body EmbeddingClient::wait_rows(std::size_t server, Requester::Call& call) {
  return at_server(server, [&](ServerClient& client) {
    return client.requester().await(call, timeout_, "no rows of small tables came");
  });
}

void EmbeddingClient::end_at(std::uint64_t step) {
  for (std::size_t server = 0; server < servers_.size(); ++server) {
    at_server(server, [&](ServerClient& client) { client.end_at(generation_, step); });
  }
}

std::vector<ServerStatus> EmbeddingClient::status() {
  std::vector<ServerStatus> all;
  for (std::size_t server = 0; server < servers_.size(); ++server) {
    all.push_back(at_server(server, [](ServerClient& client) { return client.status(); }));
  }
  return all;
}

std::vector<EmbeddingClient::ServerUse> EmbeddingClient::uses() const {
  std::vector<ServerUse> all;
  for (std::size_t server = 0; server < servers_.size(); ++server) {
    auto& use = all.emplace_back(ServerUse{.name = servers_[server].name, .waited = waited_[server]});
    auto* const link = servers_[server].client->requester().link();
    if (link == nullptr) continue;
    auto const stats = link->monitor().stats();
    auto const& peer = stats.peers.at(static_cast<std::size_t>(1 - link->rank()));
    use.bytes_sent = peer.bytes_sent;
    use.bytes_received = peer.bytes_received;
  }
  return all;
}

std::optional<std::size_t> EmbeddingClient::last_missing(BatchId batch) const { return at(batch).last_missing; }

}  // namespace headway::hybrid
