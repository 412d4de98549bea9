// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/embedding/routing.hpp"
#include "headway/hybrid/parameter_server.hpp"
#include "headway/hybrid/server_client.hpp"
#include "two_ends.hpp"

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace headway::hybrid {

inline constexpr std::chrono::seconds kLong(60);
inline constexpr std::uint32_t kTable = 3;

/// One table of `dim` columns that starts at 0 and learns by SGD, unless other values are given.
inline std::vector<embedding::MergedTable> one_table(
    std::size_t dim, kernels::OptimizerKind kind = kernels::OptimizerKind::kSgd,
    embedding::Initializer const& initializer = embedding::Initializer::constant(0)) {
  embedding::MergedTable table;
  table.options.dim = dim;
  table.options.initializer = initializer;
  table.options.optimizer.kind = kind;
  table.tables = {kTable};
  return {table};
}

/// Servers, each with a link to every client of it.
class Servers {
 public:
  explicit Servers(std::size_t count, ParameterServerOptions const& options = {}, std::uint64_t fault_seed = 0)
      : fault_seed_(fault_seed) {
    for (std::size_t i = 0; i < count; ++i) servers_.push_back(std::make_unique<ParameterServer>(options));
  }

  [[nodiscard]] std::size_t size() const { return servers_.size(); }
  [[nodiscard]] ParameterServer& operator[](std::size_t index) { return *servers_[index]; }
  /// Ends all links of a server.
  void end(std::size_t index) {
    std::lock_guard const lock(mutex_);
    for (std::size_t i = index; i < responders_.size(); i += servers_.size()) responders_[i].reset();
  }
  /// Clients of all servers, for one worker. Thread-safe.
  [[nodiscard]] std::vector<std::unique_ptr<ServerClient>> connect() {
    std::vector<std::unique_ptr<ServerClient>> clients;
    for (auto& server : servers_) {
      auto [here, there] = make_two_ends(fault_seed_);
      std::lock_guard const lock(mutex_);
      responders_.push_back(
          std::make_unique<Responder>(std::move(here), ResponderOptions{.incarnation = 1},
                                      [&server = *server](Request& request) { server.handle(request); }));
      clients.push_back(std::make_unique<ServerClient>(std::move(there), kLong));
    }
    return clients;
  }

 private:
  std::uint64_t fault_seed_;
  std::mutex mutex_;  ///< Guards responders_.
  std::vector<std::unique_ptr<ParameterServer>> servers_;
  std::vector<std::unique_ptr<Responder>> responders_;
};

/// A worker that looks up batches at all servers, and returns gradients: what an embedding worker does.
class TestWorker {
 public:
  TestWorker(Servers& servers, std::uint32_t number, std::uint64_t generation, std::size_t dim)
      : clients_(servers.connect()), number_(number), generation_(generation), dim_(dim) {}

  [[nodiscard]] ServerClient& client(std::size_t server) { return *clients_[server]; }
  void end_at(std::uint64_t step) {
    for (auto& client : clients_) client->end_at(generation_, step);
  }

  /// Sends the keys of a step to their owners. @param ids without duplicates
  void start(std::uint64_t step, std::span<std::uint64_t const> ids) {
    auto& batch = batches_[step];
    batch.ids.assign(ids.begin(), ids.end());
    auto const owners = static_cast<std::uint32_t>(clients_.size());
    auto const route = embedding::route({.ids = ids, .table = kTable}, owners);
    std::size_t first = 0;
    for (std::size_t server = 0; server < clients_.size(); ++server) {
      auto const count = static_cast<std::size_t>(route.counts[server]);
      batch.positions.emplace_back(route.order.begin() + static_cast<std::ptrdiff_t>(first),
                                   route.order.begin() + static_cast<std::ptrdiff_t>(first + count));
      first += count;
      std::vector<std::uint64_t> of_server;
      for (auto const position : batch.positions.back()) of_server.push_back(ids[position]);
      std::vector<std::uint32_t> const tables(count, kTable), counts(count, 1);
      KeyList const keys{.ids = of_server, .tables = tables, .counts = counts};
      batch.lookups.push_back(clients_[server]->start_lookup(generation_, {step, number_}, {&keys, 1}));
    }
  }

  /// (ids of start(), dim)
  [[nodiscard]] std::vector<float> rows(std::uint64_t step) {
    auto& batch = batches_.at(step);
    std::vector<float> all(batch.ids.size() * dim_);
    for (std::size_t server = 0; server < clients_.size(); ++server) {
      auto const rows = clients_[server]->wait_rows(*batch.lookups[server], kLong);
      if (!rows) throw base::OperationError({base::StatusCode::kTimeout, "rows"});
      for (std::size_t i = 0; i < batch.positions[server].size(); ++i) {
        std::copy_n(rows->begin() + static_cast<std::ptrdiff_t>(i * dim_), dim_,
                    all.begin() + static_cast<std::ptrdiff_t>(batch.positions[server][i] * dim_));
      }
    }
    return all;
  }

  /// Sends gradients, (ids of start(), dim), and waits until all servers have taken them.
  void finish(std::uint64_t step, std::span<float const> gradients, double rate) {
    auto const& batch = batches_.at(step);
    std::vector<Requester::CallPtr> parts;
    for (std::size_t server = 0; server < clients_.size(); ++server) {
      std::vector<float> values;
      for (auto const position : batch.positions[server]) {
        auto const row = gradients.subspan(position * dim_, dim_);
        values.insert(values.end(), row.begin(), row.end());
      }
      PartValues const part{.rate = rate, .gradients = values};
      parts.push_back(clients_[server]->start_part(generation_, {step, number_}, {&part, 1}));
    }
    for (std::size_t server = 0; server < clients_.size(); ++server) clients_[server]->finish(*parts[server]);
    batches_.erase(step);
  }

  void send_void(std::uint64_t step) {
    for (auto& client : clients_) client->finish(*client->start_void(generation_, {step, number_}));
    batches_.erase(step);
  }

 private:
  struct Batch {
    std::vector<std::uint64_t> ids;
    std::vector<std::vector<std::uint32_t>> positions;  ///< (servers) Positions in `ids`.
    std::vector<Requester::CallPtr> lookups;            ///< (servers)
  };

  std::vector<std::unique_ptr<ServerClient>> clients_;
  std::uint32_t number_;
  std::uint64_t generation_;
  std::size_t dim_;
  std::map<std::uint64_t, Batch> batches_;
};

/// Text of the RequestRefused that `call` throws, or "".
template <class Call>
std::string refusal_of(Call&& call) {
  try {
    call();
  } catch (RequestRefused const& refused) {
    return std::string(to_string(refused.code())) + ": " + refused.what();
  }
  return "";
}

}  // namespace headway::hybrid
