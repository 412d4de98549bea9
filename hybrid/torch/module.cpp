// SPDX-License-Identifier: Apache-2.0

// headway._hybrid: lookups at parameter servers for Python. See python/headway/_hybrid.pyi for its types.
//
// Arrays are those of numpy, which share memory with tensors on the CPU. Calls that wait or compute release the GIL.
// Waits let signals interrupt them.

#include "headway/base/thread_pool.hpp"
#include "headway/comm/endpoint.hpp"
#include "headway/comm/group_environment.hpp"
#include "headway/comm/link.hpp"
#include "headway/embedding/table_settings.hpp"
#include "headway/hybrid/embedding_client.hpp"
#include "headway/hybrid/stopwatch.hpp"
#include "headway/hybrid/worker_client.hpp"
#include "torch_headers.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace headway::hybrid {

namespace {

using Seconds = std::chrono::duration<double>;
using Ids = py::array_t<std::int64_t, py::array::c_style>;
using Floats = py::array_t<float, py::array::c_style>;
/// Name, table id, pooling, ids (K,), lengths (B,), weights (K,) or None.
using FeatureTuple =
    std::tuple<std::string, std::uint32_t, std::optional<std::string>, Ids, Ids, std::optional<Floats>>;

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::ceil<std::chrono::milliseconds>(Seconds(seconds));
}

/// Lets Ctrl-C and other signals of Python interrupt a wait.
void check_signals() {
  py::gil_scoped_acquire const with_gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

template <class Element>
std::span<Element const> span_of(py::array_t<Element, py::array::c_style> const& array) {
  return {array.data(), static_cast<std::size_t>(array.size())};
}

/// Views of the tuples.
std::vector<embedding::Feature> features_of(std::vector<FeatureTuple> const& tuples) {
  std::vector<embedding::Feature> features;
  for (auto const& [name, table, pooling, ids, lengths, weights] : tuples) {
    embedding::Feature feature{.name = name,
                               .table = table,
                               .pooling = embedding::pooling_of(pooling),
                               .ids = {ids.data(), static_cast<std::size_t>(ids.size())},
                               .lengths = {lengths.data(), static_cast<std::size_t>(lengths.size())}};
    if (weights) feature.weights = span_of(*weights);
    features.push_back(feature);
  }
  return features;
}

Floats new_array(std::size_t rows, std::size_t columns) {
  return Floats({static_cast<py::ssize_t>(rows), static_cast<py::ssize_t>(columns)});
}

/// A copy as a matrix of `columns`.
Floats matrix_of(std::span<float const> values, std::size_t columns) {
  auto made = new_array(columns == 0 ? 0 : values.size() / columns, columns);
  std::ranges::copy(values, made.mutable_data());
  return made;
}

/// A copy, whose elements may be of another type.
template <class To, class From>
py::array_t<To, py::array::c_style> array_of(std::vector<From> const& values) {
  py::array_t<To, py::array::c_style> made(static_cast<py::ssize_t>(values.size()));
  std::ranges::copy(values, made.mutable_data());
  return made;
}

/// Indices, marks of stored rows, counts and steps, (N,), embeddings (N, dim), and states (N, S). See IndexedRows.
using RowsTuple = std::tuple<Ids, Ids, Ids, Ids, Floats, Floats>;

RowsTuple tuple_of(IndexedRows const& rows) {
  auto const count = rows.indices.size();
  auto const columns = [&](std::vector<float> const& values) { return count == 0 ? 0 : values.size() / count; };
  return {array_of<std::int64_t>(rows.indices),
          array_of<std::int64_t>(rows.are_stored),
          array_of<std::int64_t>(rows.counts),
          array_of<std::int64_t>(rows.steps),
          matrix_of(rows.embeddings, columns(rows.embeddings)),
          matrix_of(rows.states, columns(rows.states))};
}

IndexedRows rows_of(RowsTuple const& tuple) {
  auto const& [indices, are_stored, counts, steps, embeddings, states] = tuple;
  auto const numbers = [](Ids const& values) {
    std::vector<std::uint32_t> made;
    for (auto const value : span_of(values)) made.push_back(static_cast<std::uint32_t>(value));
    return made;
  };
  auto const floats = [](Floats const& values) {
    auto const all = span_of(values);
    return std::vector<float>(all.begin(), all.end());
  };
  return {numbers(indices), numbers(are_stored), numbers(counts), numbers(steps), floats(embeddings), floats(states)};
}

/// Options of links to the servers of a job. @throws base::UsageError if the secret is missing
comm::GroupOptions link_options(std::string const& job, double connect_timeout_s) {
  auto options = request_link_options({});
  options.name = job;
  options.connect_timeout = milliseconds_of(connect_timeout_s);
  options.while_connecting = check_signals;
  comm::read_group_environment(options);
  base::expects(!options.secret.empty(),
                "the secret of the job is in HEADWAY_GROUP_SECRET or HEADWAY_GROUP_SECRET_FILE, and both are missing");
  return options;
}

ServerStatus query_status(std::string const& address, std::string const& job, double timeout_s) {
  auto const options = link_options(job, timeout_s);
  py::gil_scoped_release const without_gil;
  return ServerClient(comm::dial(address, options), milliseconds_of(timeout_s)).status();
}

// Checkpoints: rank 0 of the dense workers asks the servers, whatever way its lookups take.

/// Calls of all servers of a job, at the same time. Errors name the server.
class ServerCalls {
 public:
  ServerCalls(std::vector<std::string> const& addresses, std::string const& job, double connect_timeout_s,
              double timeout_s)
      : timeout_(milliseconds_of(timeout_s)) {
    auto const options = link_options(job, connect_timeout_s);
    for (auto const& address : addresses) {
      auto name = "parameter server " + std::to_string(servers_.size()) + " at " + address;
      auto client = std::make_unique<ServerClient>(comm::dial(address, options), timeout_);
      servers_.push_back({.name = std::move(name), .client = std::move(client)});
    }
  }

  /// Starts a call at each server, then waits for all. @returns their answers
  template <class Start>
  std::vector<Body> call(Start&& start, std::string const& missing) {
    std::vector<Requester::CallPtr> calls;
    for (std::size_t i = 0; i < servers_.size(); ++i) {
      named(i, [&](ServerClient& client) { calls.push_back(start(i, client)); });
    }
    auto const until = comm::deadline_after(timeout_);
    std::vector<Body> answers(servers_.size());
    std::vector<bool> has_answered(servers_.size());
    for (std::size_t num_answered = 0; num_answered < servers_.size();) {
      for (std::size_t i = 0; i < servers_.size(); ++i) {  // All, since another one may be lost.
        if (has_answered[i]) continue;
        named(i, [&](ServerClient& client) {
          auto reply = client.requester().wait(*calls[i], kTick / static_cast<int>(servers_.size()));
          if (!reply && comm::Clock::now() >= until) {
            throw base::OperationError(
                {base::StatusCode::kTimeout, missing + " within " + std::to_string(timeout_.count()) + " ms"});
          }
          if (!reply) return;
          if (reply->code != ReplyCode::kOk) throw RequestRefused(reply->code, std::string(reply->text()));
          answers[i] = std::move(reply->body);
          has_answered[i] = true;
          ++num_answered;
        });
      }
      check_signals();
    }
    return answers;
  }

 private:
  static constexpr std::chrono::milliseconds kTick{100};

  /// Runs `call` for a server; its errors name the server.
  template <class Call>
  void named(std::size_t index, Call&& call) {
    with_name(servers_[index].name, [&] { call(*servers_[index].client); });
  }

  std::chrono::milliseconds timeout_;
  std::vector<ServerEnd> servers_;
};

/// A block of a record file, in the order of the fields of RecordBlock; and a source: path, block, dim, state size.
using BlockTuple =
    std::tuple<std::uint64_t, std::uint64_t, std::uint32_t, bool, std::uint64_t, std::uint32_t, std::uint32_t>;
using SourceTuple = std::tuple<std::string, BlockTuple, std::size_t, std::size_t>;
/// Dim, state size, blocks.
using SavedTuple = std::tuple<std::uint64_t, std::uint64_t, std::vector<BlockTuple>>;
/// Ids of tables, and the optimizer state of their rows (None: that of the records).
using LoadedTuple = std::pair<std::vector<std::uint32_t>, std::optional<float>>;

/// (servers, merged tables)
std::vector<std::vector<SavedTuple>> save_tables(std::vector<std::string> const& addresses, std::string const& job,
                                                 std::uint64_t generation, std::uint64_t step, std::uint64_t end,
                                                 std::vector<std::string> const& paths, double connect_timeout_s,
                                                 double timeout_s) {
  base::expects(paths.size() == addresses.size(), "save_tables: a path for each server");
  py::gil_scoped_release const without_gil;
  ServerCalls servers(addresses, job, connect_timeout_s, timeout_s);
  auto const answers = servers.call(
      [&](std::size_t i, ServerClient& client) {
        return client.start_save(generation, {.step = step, .end = end, .path = paths[i]});
      },
      "its checkpoint was not written");
  std::vector<std::vector<SavedTuple>> all;
  for (auto const& answer : answers) {
    auto& of_server = all.emplace_back();
    for (auto const& table : decode_saved(answer)) {
      std::vector<BlockTuple> blocks;
      for (auto const& block : table.blocks) {
        blocks.emplace_back(block.offset, block.num_bytes, block.crc32, block.are_pending, block.num_keys,
                            block.first_bucket, block.end_bucket);
      }
      of_server.emplace_back(table.dim, table.state_size, std::move(blocks));
    }
  }
  return all;
}

/// (servers, merged tables) Rows without room.
std::vector<std::vector<std::uint64_t>> load_tables(std::vector<std::string> const& addresses, std::string const& job,
                                                    std::uint64_t generation, std::uint64_t step,
                                                    std::vector<std::vector<SourceTuple>> const& sources,
                                                    std::vector<LoadedTuple> const& tables, double connect_timeout_s,
                                                    double timeout_s) {
  base::expects(sources.size() == addresses.size(), "load_tables: sources for each server");
  std::vector<LoadArgs> loads;
  for (auto const& of_server : sources) {
    auto& load = loads.emplace_back();
    load.step = step;
    load.index = static_cast<std::uint32_t>(loads.size() - 1);
    load.count = static_cast<std::uint32_t>(addresses.size());
    for (auto const& [table_ids, initial_state] : tables) {
      load.tables.push_back({.table_ids = table_ids, .initial_state = initial_state});
    }
    for (auto const& [path, block, dim, state_size] : of_server) {
      auto const& [offset, num_bytes, crc32, are_pending, num_keys, first_bucket, end_bucket] = block;
      load.sources.push_back({.path = path,
                              .block = {.offset = offset,
                                        .num_bytes = num_bytes,
                                        .crc32 = crc32,
                                        .are_pending = are_pending,
                                        .num_keys = num_keys,
                                        .first_bucket = first_bucket,
                                        .end_bucket = end_bucket},
                              .dim = dim,
                              .state_size = state_size});
    }
  }
  py::gil_scoped_release const without_gil;
  ServerCalls servers(addresses, job, connect_timeout_s, timeout_s);
  auto const answers =
      servers.call([&](std::size_t i, ServerClient& client) { return client.start_load(generation, loads[i]); },
                   "the checkpoint was not read");
  static_cast<void>(
      servers.call([&](std::size_t, ServerClient& client) { return client.start_take_loaded(generation); },
                   "the checkpoint was not taken"));
  std::vector<std::vector<std::uint64_t>> evicted;
  for (auto const& answer : answers) evicted.push_back(decode_evicted(answer));
  return evicted;
}

/// Gives servers rows of small tables. @param rows (servers) merged table, and rows with the indices of the server
void store_rows(std::vector<std::string> const& addresses, std::string const& job, std::uint64_t generation,
                std::vector<std::vector<std::pair<std::size_t, RowsTuple>>> const& rows, double connect_timeout_s,
                double timeout_s) {
  base::expects(rows.size() == addresses.size(), "store_rows: rows for each server");
  std::vector<std::vector<RowsToStore>> of_servers;
  for (auto const& each : rows) {
    auto& of_server = of_servers.emplace_back();
    for (auto const& [merged, tuple] : each) of_server.push_back({.merged = merged, .rows = rows_of(tuple)});
  }
  py::gil_scoped_release const without_gil;
  ServerCalls servers(addresses, job, connect_timeout_s, timeout_s);
  static_cast<void>(servers.call(
      [&](std::size_t i, ServerClient& client) { return client.start_store_rows(generation, of_servers[i]); },
      "rows of small tables were not stored"));
}

WorkerStatus query_worker_status(std::string const& address, std::string const& job, double timeout_s) {
  auto const options = link_options(job, timeout_s);
  py::gil_scoped_release const without_gil;
  return WorkerClient("embedding worker at " + address, comm::dial(address, options), milliseconds_of(timeout_s))
      .status();
}

LossCause cause_of(std::string const& name) {
  for (std::size_t i = 0; i < kNumLossCauses; ++i) {
    if (to_string(static_cast<LossCause>(i)) == name) return static_cast<LossCause>(i);
  }
  throw base::UsageError("there is no cause " + name);
}

/// Losses by the names of their causes.
py::dict losses_of(std::vector<std::uint64_t> const& counts) {
  py::dict losses;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    losses[py::str(std::string(to_string(static_cast<LossCause>(i))))] = counts[i];
  }
  return losses;
}

double seconds_of(std::uint64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

py::list tables_of(ServerStatus const& status) {
  using namespace py::literals;
  py::list tables;
  for (auto const& table : status.tables) {
    py::dict top_lookups;
    for (auto const& each : table.shares) top_lookups[py::str(each.table)] = each.top_lookups;
    tables.append(py::dict("rows"_a = table.rows, "cold_rows"_a = table.cold_rows, "pending"_a = table.pending,
                           "key_bytes"_a = table.key_bytes, "row_bytes"_a = table.row_bytes,
                           "inserted"_a = table.inserted, "evicted"_a = table.evicted, "expired"_a = table.expired,
                           "refused"_a = table.refused, "dropped_gradients"_a = table.dropped_gradients,
                           "top_lookups"_a = top_lookups));
  }
  return tables;
}

py::list waits_of(ServerStatus const& status) {
  py::list waits;
  for (auto const& each : status.waits) waits.append(py::make_tuple(each.num_lookups, seconds_of(each.nanoseconds)));
  return waits;
}

py::list servers_of(WorkerStatus const& status) {
  using namespace py::literals;
  py::list servers;
  for (auto const& each : status.servers) {
    servers.append(py::dict("name"_a = each.name, "last"_a = each.num_last, "last_s"_a = seconds_of(each.last_ns),
                            "bytes_sent"_a = each.bytes_sent, "bytes_received"_a = each.bytes_received));
  }
  return servers;
}

std::vector<embedding::MergedTable> merged_tables_of(std::vector<embedding::TableSettings> const& settings,
                                                     std::vector<std::vector<std::uint32_t>> const& table_ids,
                                                     std::vector<std::vector<std::string>> const& table_names,
                                                     std::vector<bool> const& reads_zeros) {
  base::expects(settings.size() == table_ids.size() && settings.size() == table_names.size() &&
                    settings.size() == reads_zeros.size(),
                "table_ids, table_names and reads_zeros need one element for each table");
  std::vector<embedding::MergedTable> tables;
  for (std::size_t i = 0; i < settings.size(); ++i) {
    tables.push_back({.options = embedding::options_of(settings[i], /*is_on_host=*/true),
                      .tables = table_ids[i],
                      .reads_unknown_as_zeros = reads_zeros[i],
                      .names = table_names[i]});
  }
  return tables;
}

class PythonClient {
 public:
  PythonClient(std::vector<std::string> const& addresses, std::string const& job,
               std::vector<embedding::TableSettings> const& settings,
               std::vector<std::vector<std::uint32_t>> const& table_ids,
               std::vector<std::vector<std::string>> const& table_names, std::vector<bool> const& reads_zeros,
               double timeout_s, double connect_timeout_s, bool compress_ids, bool compress_values, int num_threads) {
    auto tables = merged_tables_of(settings, table_ids, table_names, reads_zeros);
    for (auto const& table : tables) dims_.push_back(table.options.dim);
    auto const options = link_options(job, connect_timeout_s);
    py::gil_scoped_release const without_gil;
    std::vector<ServerEnd> servers;
    for (auto const& address : addresses) {
      auto link = comm::dial(address, options);
      servers.push_back({.name = "parameter server " + std::to_string(servers.size()) + " at " + address,
                         .client = std::make_unique<ServerClient>(std::move(link), milliseconds_of(timeout_s))});
    }
    client_ = std::make_unique<EmbeddingClient>(std::move(servers), std::move(tables), milliseconds_of(timeout_s),
                                                std::make_shared<base::ThreadPool>(num_threads),
                                                Compression{.ids = compress_ids, .values = compress_values});
  }

  void begin_generation(std::uint64_t generation, StepLedger::Options const& options, std::uint64_t token) {
    py::gil_scoped_release const without_gil;
    client_->begin_generation(generation, options, token);
  }

  void start(std::uint64_t step, std::uint32_t worker, std::vector<FeatureTuple> const& tuples) {
    auto const features = features_of(tuples);
    py::gil_scoped_release const without_gil;
    client_->start({step, worker}, features);
  }

  /// (bags, dim) of each merged table.
  std::vector<Floats> wait(std::uint64_t step, std::uint32_t worker) {
    {
      py::gil_scoped_release const without_gil;
      client_->wait({step, worker}, check_signals);
    }
    std::vector<Floats> embeddings;
    for (std::size_t merged = 0; merged < dims_.size(); ++merged) {
      embeddings.push_back(new_array(client_->num_bags({step, worker}, merged), dims_[merged]));
      std::span<float> const out(embeddings.back().mutable_data(), static_cast<std::size_t>(embeddings.back().size()));
      py::gil_scoped_release const without_gil;
      client_->expand({step, worker}, merged, out);
    }
    return embeddings;
  }

  /// @param gradients (merged tables) rate, and (bags, dim) or None
  void return_gradients(std::uint64_t step, std::uint32_t worker,
                        std::vector<std::pair<double, std::optional<Floats>>> const& gradients) {
    std::vector<EmbeddingClient::Gradients> views;
    for (auto const& [rate, values] : gradients) {
      views.push_back({.rate = rate, .values = values ? span_of(*values) : std::span<float const>()});
    }
    py::gil_scoped_release const without_gil;
    client_->return_gradients({step, worker}, views);
  }

  void drop(std::uint64_t step, std::uint32_t worker, std::string const& cause) {
    auto const of_batch = cause_of(cause);
    py::gil_scoped_release const without_gil;
    client_->drop({step, worker}, of_batch);
  }

  bool is_finished(std::uint64_t step, std::uint32_t worker) {
    py::gil_scoped_release const without_gil;
    return client_->is_finished({step, worker});
  }

  bool finish(std::uint64_t step, std::uint32_t worker) {
    py::gil_scoped_release const without_gil;
    return client_->finish({step, worker}, check_signals);
  }

  /// (servers) Name, and the time in seconds that was waited for it.
  [[nodiscard]] std::vector<std::pair<std::string, double>> waits() const {
    std::vector<std::pair<std::string, double>> waits;
    for (auto const& each : client_->uses()) waits.emplace_back(each.name, Seconds(each.waited).count());
    return waits;
  }

  std::vector<Floats> read(std::vector<FeatureTuple> const& tuples) {
    auto const features = features_of(tuples);
    std::optional<embedding::RoutedBatch> batch;
    {
      py::gil_scoped_release const without_gil;
      batch.emplace(client_->read(features));
    }
    std::vector<Floats> embeddings;
    for (std::size_t merged = 0; merged < dims_.size(); ++merged) {
      auto& made = embeddings.emplace_back(new_array(batch->num_bags(merged), dims_[merged]));
      batch->expand(merged, {made.mutable_data(), static_cast<std::size_t>(made.size())});
    }
    return embeddings;
  }

  void end_at(std::uint64_t step) {
    py::gil_scoped_release const without_gil;
    client_->end_at(step);
  }

  std::vector<ServerStatus> status() {
    py::gil_scoped_release const without_gil;
    return client_->status();
  }

 private:
  std::vector<std::size_t> dims_;
  std::unique_ptr<EmbeddingClient> client_;
};

/// Embedding workers, for a loader or a dense worker. They come and go: one that left is forgotten when it has no batch
/// of this dense worker.
class PythonWorkers {
 public:
  /// Address of the worker, number of the loader, number of the batch.
  using Reference = std::tuple<std::string, std::uint64_t, std::uint64_t>;
  /// Row indices (K,), lengths (B,), weights (K,) or None.
  using SmallTuple = std::tuple<Ids, Ids, std::optional<Floats>>;
  /// (features) bags, (bags, dim) of each merged table, features and rows of small tables.
  using Found =
      std::tuple<std::vector<std::uint64_t>, std::vector<Floats>, std::vector<SmallTuple>, std::vector<RowsTuple>>;

  PythonWorkers(std::string job, std::vector<embedding::TableSettings> const& settings,
                std::vector<std::vector<std::uint32_t>> const& table_ids,
                std::vector<std::vector<std::string>> const& table_names, std::vector<bool> const& reads_zeros,
                std::vector<std::tuple<std::string, std::uint32_t, std::optional<std::string>>> const& features,
                double timeout_s, bool compress_ids, bool compress_values, std::vector<std::size_t> small)
      : job_(std::move(job)),
        tables_(merged_tables_of(settings, table_ids, table_names, reads_zeros)),
        timeout_(milliseconds_of(timeout_s)),
        compression_{.ids = compress_ids, .values = compress_values},
        small_(std::move(small)) {
    for (auto const& table : tables_) dims_.push_back(table.options.dim);
    for (auto const& [name, table, pooling] : features) {
      features_.push_back({.name = name, .table = table, .pooling = embedding::pooling_of(pooling)});
    }
  }

  /// Connects with a worker, and gives it tables, features and the present generation.
  /// @param name for errors
  void connect(std::string const& address, std::string const& name, double connect_timeout_s) {
    auto const options = link_options(job_, connect_timeout_s);
    py::gil_scoped_release const without_gil;
    std::unique_ptr<comm::Group> link;
    try {
      link = comm::dial(address, options);
    } catch (base::SystemError const& error) {
      throw base::SystemError(name + ": " + error.what());
    }
    auto worker = std::make_unique<WorkerClient>(name, std::move(link), timeout_);
    worker->set_up(tables_, features_, compression_, small_);
    if (generation_ > 0) worker->begin_generation(generation_, *generation_options_, token_);
    workers_.insert_or_assign(address, std::move(worker));
    waited_.try_emplace(name);
  }

  [[nodiscard]] std::vector<std::string> addresses() const {
    std::vector<std::string> found;
    for (auto const& [address, worker] : workers_) found.push_back(address);
    return found;
  }

  void begin_generation(std::uint64_t generation, StepLedger::Options const& options, std::uint64_t token) {
    py::gil_scoped_release const without_gil;
    for (auto const& address : addresses()) {
      unless_it_has_left(address, [&] { workers_.at(address)->begin_generation(generation, options, token); });
    }
    expect_workers();
    generation_ = generation;
    generation_options_ = options;
    token_ = token;
    batches_.clear();
  }

  /// @returns why the worker has not taken the batch, if it is leaving or lost; it is forgotten
  std::optional<std::string> submit(Reference const& reference, std::vector<FeatureTuple> const& tuples) {
    auto const& [address, loader, number] = reference;
    BatchName const batch{.loader = loader, .number = number};
    std::vector<FeatureIds> ids;
    for (auto const& [name, table, pooling, values, lengths, weights] : tuples) {
      ids.push_back({.ids = span_of(values), .lengths = span_of(lengths)});
      if (weights) ids.back().weights = span_of(*weights);
    }
    py::gil_scoped_release const without_gil;
    try {
      at(address).submit(batch, ids, check_signals);
      return std::nullopt;
    } catch (RequestRefused const& refused) {
      if (refused.code() != ReplyCode::kLeaving) throw;
      workers_.erase(address);
      return refused.what();
    } catch (base::OperationError const& error) {
      if (error.status().code() == base::StatusCode::kTimeout) throw;
      workers_.erase(address);
      return error.what();
    }
  }

  /// @param reference None: a step without a batch, which has no bags
  /// @returns false if the connection with the worker is lost, and no batch needed it; connect again
  bool start(std::uint64_t step, std::uint32_t rank, std::optional<Reference> const& reference) {
    Batch batch;
    if (reference) {
      auto const& [address, loader, number] = *reference;
      BatchName const name{.loader = loader, .number = number};
      batch.worker = address;
      py::gil_scoped_release const without_gil;
      bool const has_started = unless_it_has_left(address, [&] {
        batch.fetch = at(address).start_fetch(generation_, name, {step, rank});
      });
      if (!has_started) return false;
    } else {
      batch.found = Embeddings{.num_bags = std::vector<std::uint64_t>(features_.size()),
                               .values = std::vector<std::vector<float>>(dims_.size()),
                               .distinct_bags = {}};
      batch.is_empty = true;
    }
    batches_.insert_or_assign(step, std::move(batch));
    return true;
  }

  Found wait(std::uint64_t step, std::uint32_t rank) {
    auto& batch = at(step);
    if (!batch.found) {
      py::gil_scoped_release const without_gil;
      Stopwatch const stopwatch(waited_[at(batch.worker).name()]);
      batch.found = at(batch.worker).wait_embeddings(*batch.fetch, {step, rank}, check_signals);
    }
    return arrays_of(*batch.found);
  }

  void return_gradients(std::uint64_t step, std::uint32_t rank,
                        std::vector<std::pair<double, std::optional<Floats>>> const& gradients) {
    auto& batch = at(step);
    if (batch.is_empty) return drop(step, rank, "no_batch");
    std::vector<PartValues> parts;
    for (auto const& [rate, values] : gradients) {
      parts.push_back({.rate = rate, .gradients = values ? span_of(*values) : std::span<float const>()});
    }
    base::expects(batch.found.has_value(),
                  "the embeddings of the batch of step " + std::to_string(step) + " have not come");
    py::gil_scoped_release const without_gil;
    batch.end = at(batch.worker).start_gradients(generation_, {step, rank}, parts, *batch.found);
  }

  void drop(std::uint64_t step, std::uint32_t rank, std::string const& cause) {
    auto& batch = at(step);
    py::gil_scoped_release const without_gil;
    if (batch.is_empty) return drop_empty(batch, {step, rank});
    batch.end = at(batch.worker).start_drop(generation_, {step, rank}, cause_of(cause));
  }

  bool is_finished(std::uint64_t step, std::uint32_t /*rank*/) {
    auto const& batch = at(step);
    py::gil_scoped_release const without_gil;
    if (batch.end == nullptr) return false;
    try {
      return at(batch.worker).is_finished(*batch.end);
    } catch (base::OperationError const&) {
      if (!batch.is_empty) throw;
      return true;  // finish() tells another worker.
    }
  }

  bool finish(std::uint64_t step, std::uint32_t rank) {
    auto& batch = at(step);
    base::expects(batch.end != nullptr, "the batch of step " + std::to_string(step) + " has no gradients");
    bool is_finite = true;
    {
      py::gil_scoped_release const without_gil;
      Stopwatch const stopwatch(waited_[at(batch.worker).name()]);
      for (bool is_repeated = false;; is_repeated = true) {
        try {
          is_finite = at(batch.worker).finish(*batch.end, {step, rank}, check_signals);
          break;
        } catch (RequestRefused const& refused) {
          // The lost worker had passed the void notice on, so servers take no second one.
          if (!is_repeated || refused.code() == ReplyCode::kOldGeneration) throw;
          break;
        } catch (base::OperationError const& error) {
          if (!batch.is_empty || error.status().code() == base::StatusCode::kTimeout) throw;
          workers_.erase(batch.worker);
          drop_empty(batch, {step, rank});
        }
      }
    }
    batches_.erase(step);
    return is_finite;
  }

  /// Names of all workers so far, and the time in seconds that was waited for each.
  [[nodiscard]] std::vector<std::pair<std::string, double>> waits() const {
    std::vector<std::pair<std::string, double>> waits;
    for (auto const& [name, waited] : waited_) waits.emplace_back(name, Seconds(waited).count());
    return waits;
  }

  Found read(Reference const& reference) {
    auto const& [address, loader, number] = reference;
    BatchName const name{.loader = loader, .number = number};
    Embeddings found;
    {
      py::gil_scoped_release const without_gil;
      found = at(address).read(name, check_signals);
    }
    return arrays_of(found);
  }

  void end_at(std::uint64_t step) {
    py::gil_scoped_release const without_gil;
    bool has_told = false;
    for (auto const& address : addresses()) {
      if (has_told) break;
      has_told = unless_it_has_left(address, [&] { workers_.at(address)->end_at(generation_, step); });
    }
    expect_workers();
  }

 private:
  struct Batch {
    std::string worker{};  ///< Its address.
    bool is_empty = false;
    Requester::CallPtr fetch{}, end{};
    std::optional<Embeddings> found{};
  };

  [[nodiscard]] WorkerClient& at(std::string const& address) {
    auto const found = workers_.find(address);
    base::expects(found != workers_.end(), "there is no connection with an embedding worker at " + address);
    return *found->second;
  }

  void expect_workers() const {
    if (workers_.empty()) {
      throw base::OperationError({base::StatusCode::kPeerLost, "no embedding worker is left"});
    }
  }

  /// Calls `call`, and forgets the worker if it is lost and has no batch of this dense worker.
  /// @returns false if it was forgotten
  template <class Call>
  bool unless_it_has_left(std::string const& address, Call call) {
    try {
      call();
      return true;
    } catch (base::OperationError const& error) {
      bool const is_needed = std::ranges::any_of(
          batches_, [&](auto const& each) { return each.second.worker == address && !each.second.is_empty; });
      if (is_needed || error.status().code() == base::StatusCode::kTimeout) throw;
      workers_.erase(address);
      return false;
    }
  }

  /// Any worker tells the servers that a step has no batch.
  void drop_empty(Batch& batch, BatchId id) {
    bool has_told = false;
    for (auto const& address : addresses()) {
      if (has_told) break;
      has_told = unless_it_has_left(address, [&] {
        batch.worker = address;
        batch.end = workers_.at(address)->start_drop(generation_, id, LossCause::kNoBatch);
      });
    }
    expect_workers();
  }

  [[nodiscard]] Batch& at(std::uint64_t step) {
    auto const found = batches_.find(step);
    base::expects(found != batches_.end(),
                  "the batch of step " + std::to_string(step) + " was not started, or has ended");
    return found->second;
  }

  [[nodiscard]] Found arrays_of(Embeddings const& embeddings) const {
    base::expects(embeddings.num_bags.size() == features_.size() && embeddings.values.size() == dims_.size(),
                  "an embedding worker sent other features");
    std::vector<Floats> of_tables;
    for (std::size_t merged = 0; merged < dims_.size(); ++merged) {
      of_tables.push_back(matrix_of(embeddings.values[merged], dims_[merged]));
    }
    std::vector<SmallTuple> features;
    for (auto const& [indices, lengths, weights] : embeddings.small_features) {
      std::optional<Floats> given;
      if (!weights.empty()) given = array_of<float>(weights);
      features.emplace_back(array_of<std::int64_t>(indices), array_of<std::int64_t>(lengths), std::move(given));
    }
    std::vector<RowsTuple> rows;
    for (auto const& each : embeddings.small_rows) rows.push_back(tuple_of(each));
    return {embeddings.num_bags, std::move(of_tables), std::move(features), std::move(rows)};
  }

  std::string job_;
  std::vector<embedding::MergedTable> tables_;
  std::chrono::milliseconds timeout_;
  Compression compression_;
  std::vector<std::size_t> small_;
  std::vector<std::size_t> dims_{};
  std::vector<FeatureSetting> features_{};
  std::map<std::string, std::unique_ptr<WorkerClient>> workers_{};  ///< By address.
  std::map<std::string, std::chrono::nanoseconds> waited_{};        ///< By name, in calls that wait.
  std::uint64_t generation_ = 0, token_ = 0;
  std::optional<StepLedger::Options> generation_options_{};
  std::map<std::uint64_t, Batch> batches_{};  ///< By step.
};

StepLedger::Options make_generation_options(std::uint32_t workers, std::uint32_t staleness, std::uint64_t first_step,
                                            bool is_exact, bool sums_parts, bool shares_clock) {
  return {.num_workers = workers,
          .staleness = staleness,
          .first_step = first_step,
          .is_exact = is_exact,
          .sums_parts = sums_parts,
          .shares_clock = shares_clock};
}

embedding::TableSettings make_settings(std::size_t dim, embedding::Initializer const& initializer,
                                       kernels::OptimizerOptions const& optimizer, std::optional<std::size_t> max_rows,
                                       std::string eviction, std::optional<std::size_t> high_water,
                                       std::optional<std::size_t> low_water, std::uint32_t time_to_live,
                                       std::uint32_t min_count, std::optional<std::size_t> max_pending,
                                       std::uint32_t hot_count) {
  return {.dim = dim,
          .initializer = initializer,
          .optimizer = optimizer,
          .max_rows = max_rows,
          .eviction = std::move(eviction),
          .high_water = high_water,
          .low_water = low_water,
          .time_to_live = time_to_live,
          .min_count = min_count,
          .max_pending = max_pending,
          .hot_count = hot_count};
}

}  // namespace

PYBIND11_MODULE(_hybrid, module) {
  // Initializer and OptimizerOptions are classes of this module.
  py::module_::import("headway._embedding");
  py::class_<embedding::TableSettings>(module, "TableSettings")
      .def(py::init(&make_settings), py::kw_only(), py::arg("dim"), py::arg("initializer"), py::arg("optimizer"),
           py::arg("max_rows"), py::arg("eviction"), py::arg("high_water"), py::arg("low_water"),
           py::arg("time_to_live"), py::arg("min_count"), py::arg("max_pending"), py::arg("hot_count"));
  py::class_<StepLedger::Options>(module, "GenerationOptions")
      .def(py::init(&make_generation_options), py::kw_only(), py::arg("workers"), py::arg("staleness"),
           py::arg("first_step"), py::arg("is_exact") = false, py::arg("sums_parts") = true,
           py::arg("shares_clock") = true);
  py::class_<ServerStatus>(module, "ServerStatus")
      .def_readonly("generation", &ServerStatus::generation)
      .def_readonly("num_applied", &ServerStatus::num_applied)
      .def_readonly("lookups", &ServerStatus::lookups)
      .def_readonly("reads", &ServerStatus::reads)
      .def_readonly("parts", &ServerStatus::parts)
      .def_readonly("voids", &ServerStatus::voids)
      .def_readonly("held", &ServerStatus::held)
      .def_readonly("void_not_finite", &ServerStatus::void_not_finite)
      .def_readonly("void_generation", &ServerStatus::void_generation)
      .def_readonly("rows", &ServerStatus::rows)
      .def_readonly("cold_rows", &ServerStatus::cold_rows)
      .def_readonly("pending", &ServerStatus::pending)
      .def_readonly("bytes", &ServerStatus::bytes)
      .def_readonly("evicted", &ServerStatus::evicted)
      .def_readonly("refused", &ServerStatus::refused)
      .def_readonly("dropped_gradients", &ServerStatus::dropped_gradients)
      .def_property_readonly("plain_id_bytes", [](ServerStatus const& self) { return self.messages.plain_ids; })
      .def_property_readonly("sent_id_bytes", [](ServerStatus const& self) { return self.messages.sent_ids; })
      .def_property_readonly("plain_value_bytes", [](ServerStatus const& self) { return self.messages.plain_values; })
      .def_property_readonly("sent_value_bytes", [](ServerStatus const& self) { return self.messages.sent_values; })
      .def_readonly("staleness", &ServerStatus::staleness)
      .def_readonly("samples", &ServerStatus::samples)
      .def_property_readonly("lost", [](ServerStatus const& status) { return losses_of(status.lost); })
      .def_property_readonly("waits", &waits_of)
      .def_property_readonly("tables", &tables_of);
  py::class_<WorkerStatus>(module, "WorkerStatus")
      .def_readonly("generation", &WorkerStatus::generation)
      .def_readonly("submitted", &WorkerStatus::submitted)
      .def_readonly("fetched", &WorkerStatus::fetched)
      .def_readonly("trained", &WorkerStatus::trained)
      .def_readonly("read", &WorkerStatus::read)
      .def_readonly("dropped", &WorkerStatus::dropped)
      .def_readonly("waiting_loaders", &WorkerStatus::waiting_loaders)
      .def_readonly("buffered", &WorkerStatus::buffered)
      .def_readonly("buffered_bytes", &WorkerStatus::buffered_bytes)
      .def_readonly("in_flight", &WorkerStatus::in_flight)
      .def_readonly("loader_waits", &WorkerStatus::loader_waits)
      .def_property_readonly("loader_wait_s",
                             [](WorkerStatus const& status) { return seconds_of(status.loader_wait_ns); })
      .def_readonly("answered", &WorkerStatus::answered)
      .def_property_readonly("lost", [](WorkerStatus const& status) { return losses_of(status.lost); })
      .def_property_readonly("plain_id_bytes", [](WorkerStatus const& self) { return self.messages.plain_ids; })
      .def_property_readonly("sent_id_bytes", [](WorkerStatus const& self) { return self.messages.sent_ids; })
      .def_property_readonly("plain_value_bytes", [](WorkerStatus const& self) { return self.messages.plain_values; })
      .def_property_readonly("sent_value_bytes", [](WorkerStatus const& self) { return self.messages.sent_values; })
      .def_property_readonly("servers", &servers_of);
  py::register_exception<RequestRefused>(module, "RequestRefusedError", PyExc_RuntimeError);
  module.def("query_status", &query_status, py::arg("address"), py::kw_only(), py::arg("job"), py::arg("timeout_s"));
  module.def("query_worker_status", &query_worker_status, py::arg("address"), py::kw_only(), py::arg("job"),
             py::arg("timeout_s"));
  module.def("save_tables", &save_tables, py::arg("addresses"), py::kw_only(), py::arg("job"), py::arg("generation"),
             py::arg("step"), py::arg("end"), py::arg("paths"), py::arg("connect_timeout_s"), py::arg("timeout_s"));
  module.def("store_rows", &store_rows, py::arg("addresses"), py::kw_only(), py::arg("job"), py::arg("generation"),
             py::arg("rows"), py::arg("connect_timeout_s"), py::arg("timeout_s"));
  module.def("load_tables", &load_tables, py::arg("addresses"), py::kw_only(), py::arg("job"), py::arg("generation"),
             py::arg("step"), py::arg("sources"), py::arg("tables"), py::arg("connect_timeout_s"),
             py::arg("timeout_s"));
  py::class_<PythonWorkers>(module, "EmbeddingWorkers")
      .def(py::init<std::string, std::vector<embedding::TableSettings> const&,
                    std::vector<std::vector<std::uint32_t>> const&, std::vector<std::vector<std::string>> const&,
                    std::vector<bool> const&,
                    std::vector<std::tuple<std::string, std::uint32_t, std::optional<std::string>>> const&, double,
                    bool, bool, std::vector<std::size_t>>(),
           py::kw_only(), py::arg("job"), py::arg("tables"), py::arg("table_ids"), py::arg("table_names"),
           py::arg("reads_zeros"), py::arg("features"), py::arg("timeout_s"), py::arg("compress_ids"),
           py::arg("compress_values"), py::arg("small"))
      .def("connect", &PythonWorkers::connect, py::arg("address"), py::kw_only(), py::arg("name"),
           py::arg("connect_timeout_s"))
      .def("addresses", &PythonWorkers::addresses)
      .def("begin_generation", &PythonWorkers::begin_generation, py::arg("generation"), py::arg("options"),
           py::kw_only(), py::arg("token"))
      .def("submit", &PythonWorkers::submit, py::arg("reference"), py::arg("features"))
      .def("start", &PythonWorkers::start, py::arg("step"), py::arg("worker"), py::arg("reference"))
      .def("wait", &PythonWorkers::wait, py::arg("step"), py::arg("worker"))
      .def("return_gradients", &PythonWorkers::return_gradients, py::arg("step"), py::arg("worker"),
           py::arg("gradients"))
      .def("drop", &PythonWorkers::drop, py::arg("step"), py::arg("worker"), py::arg("cause"))
      .def("waits", &PythonWorkers::waits)
      .def("is_finished", &PythonWorkers::is_finished, py::arg("step"), py::arg("worker"))
      .def("finish", &PythonWorkers::finish, py::arg("step"), py::arg("worker"))
      .def("read", &PythonWorkers::read, py::arg("reference"))
      .def("end_at", &PythonWorkers::end_at, py::arg("step"));
  py::class_<PythonClient>(module, "EmbeddingClient")
      .def(py::init<std::vector<std::string> const&, std::string const&, std::vector<embedding::TableSettings> const&,
                    std::vector<std::vector<std::uint32_t>> const&, std::vector<std::vector<std::string>> const&,
                    std::vector<bool> const&, double, double, bool, bool, int>(),
           py::kw_only(), py::arg("addresses"), py::arg("job"), py::arg("tables"), py::arg("table_ids"),
           py::arg("table_names"), py::arg("reads_zeros"), py::arg("timeout_s"), py::arg("connect_timeout_s"),
           py::arg("compress_ids"), py::arg("compress_values"), py::arg("num_threads"))
      .def("begin_generation", &PythonClient::begin_generation, py::arg("generation"), py::arg("options"),
           py::kw_only(), py::arg("token"))
      .def("start", &PythonClient::start, py::arg("step"), py::arg("worker"), py::arg("features"))
      .def("wait", &PythonClient::wait, py::arg("step"), py::arg("worker"))
      .def("return_gradients", &PythonClient::return_gradients, py::arg("step"), py::arg("worker"),
           py::arg("gradients"))
      .def("drop", &PythonClient::drop, py::arg("step"), py::arg("worker"), py::arg("cause"))
      .def("waits", &PythonClient::waits)
      .def("is_finished", &PythonClient::is_finished, py::arg("step"), py::arg("worker"))
      .def("finish", &PythonClient::finish, py::arg("step"), py::arg("worker"))
      .def("read", &PythonClient::read, py::arg("features"))
      .def("end_at", &PythonClient::end_at, py::arg("step"))
      .def("status", &PythonClient::status);
}

}  // namespace headway::hybrid
