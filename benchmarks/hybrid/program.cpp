// SPDX-License-Identifier: Apache-2.0

// Measures lookups at a parameter server: rows per second, in turns with the same lookups elsewhere.
//
//   table        a table of this process, by find() and gather(), without a server. One lock guards it
//   stripes      the same by read(), which locks two stripes of the table at a time
//   in_process   a server of this process, which the asking thread calls
//   thread       a server that is a thread of this process, over a link
//   shm, tcp     a server that is another process, over a link
//   raw_tcp      the same bytes each way over a loopback socket, without a lookup: the limit of tcp
//   redis        a Redis server at --redis: an MGET looks rows up, and an MGET with an MSET after it updates them
//
// A lookup has distinct keys that are all there, and returns their rows. Two are in flight over links and sockets.
// Each system is measured three times: lookups alone; lookups while another thread makes --updates updates a second of
// as many rows; and updates, one after the other. An update is a step: it looks rows up, and trains them by gradients.
// Only the tables that the chosen systems need are made: each server has one, and `table` and `stripes` share one.

#include "forked_ranks.hpp"
#include "json_object.hpp"
#include "options.hpp"
#include "rank_program.hpp"
#include "redis_client.hpp"
#include "sample_summary.hpp"
#include "sockets.hpp"

#include <headway/base/file_descriptor.hpp>
#include <headway/comm/endpoint.hpp>
#include <headway/comm/link.hpp>
#include <headway/comm/store.hpp>
#include <headway/embedding/concurrent_table.hpp>
#include <headway/hybrid/parameter_server.hpp>
#include <headway/hybrid/request_service.hpp>
#include <headway/hybrid/server_client.hpp>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace headway::benchmarks {

namespace {

using hybrid::KeyList;
using hybrid::Requester;
using hybrid::ServerClient;
using std::chrono::duration;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr std::uint32_t kTable = 1;
constexpr std::size_t kInFlight = 2, kNumBatches = 64;
constexpr seconds kTimeout(60);

struct Settings : RankSettings {
  std::uint64_t rows = 1'000'000;
  std::size_t dim = 64, keys = 4096;
  int updates = 200;
  int rounds = 9;
  int milliseconds = 300;
  std::string systems{};  ///< Names, separated by commas; empty: all.
  std::string redis{};    ///< Unix socket; empty: none.
};

std::string usage(std::string const& program) {
  return "Measures lookups at a parameter server, and prints a JSON line for each system.\n\n"
         "usage: " +
         program +
         " [options]\n"
         "  --rows N          rows of the table (1000000)\n"
         "  --dim D           floats of a row (64)\n"
         "  --keys K          distinct keys of a lookup (4096)\n"
         "  --updates N       beside lookups, in a second (200)\n"
         "  --rounds N        of each system, in turns (9)\n"
         "  --milliseconds M  of a round (300)\n"
         "  --systems A,B     measure these only (all)\n"
         "  --redis PATH      Unix socket of a Redis server, which gets the rows\n"
         "  --time-limit S    end after this time (300)\n";
}

std::vector<embedding::MergedTable> tables_of(Settings const& settings) {
  embedding::MergedTable table;
  table.options.dim = settings.dim;
  table.options.initializer = embedding::Initializer::uniform(-1, 1, 1);
  table.options.optimizer.kind = kernels::OptimizerKind::kRowWiseAdagrad;
  table.tables = {kTable};
  return {table};
}

comm::GroupOptions options_of(comm::Transport transport) {
  auto options = hybrid::request_link_options({});
  options.transport = transport;
  options.name = "bench";
  options.secret = "secret of the benchmark";
  options.connect_timeout = kTimeout;
  return options;
}

/// Batches of distinct keys that are in the table.
class Batches {
 public:
  explicit Batches(Settings const& settings) : tables_(settings.keys, kTable), counts_(settings.keys, 1) {
    std::mt19937_64 random(1);
    for (std::size_t i = 0; i < kNumBatches; ++i) {
      auto& ids = ids_.emplace_back();
      // Every stride-th row from a random one on: distinct, and spread over the table.
      std::uint64_t const stride = settings.rows / settings.keys, first = random() % settings.rows;
      for (std::size_t key = 0; key < settings.keys; ++key) {
        ids.push_back((first + key * stride + random() % stride) % settings.rows);
      }
    }
  }
  [[nodiscard]] KeyList operator[](std::size_t number) const {
    return {.ids = ids_[number % kNumBatches], .tables = tables_, .counts = counts_};
  }

 private:
  std::vector<std::vector<std::uint64_t>> ids_;
  std::vector<std::uint32_t> tables_, counts_;
};

/// Inserts all rows, in one step.
/// @returns the steps that it took
std::uint64_t fill(ServerClient& client, Settings const& settings) {
  client.configure(tables_of(settings));
  client.begin_generation(1, {.num_workers = 1});
  std::uint64_t step = 0;
  for (std::uint64_t first = 0; first < settings.rows; first += 65'536, ++step) {
    std::vector<std::uint64_t> ids;
    for (auto id = first; id < std::min(first + 65'536, settings.rows); ++id) ids.push_back(id);
    std::vector<std::uint32_t> const tables(ids.size(), kTable), counts(ids.size(), 1);
    KeyList const keys{.ids = ids, .tables = tables, .counts = counts};
    auto const lookup = client.start_lookup(1, {.step = step, .worker = 0}, {&keys, 1});
    if (!client.wait_rows(*lookup, kTimeout)) throw std::runtime_error("no rows came");
    client.finish(*client.start_void(1, {.step = step, .worker = 0}));
  }
  return step;
}

/// Looks batches up for some time. @returns lookups per second
using Measure = std::function<double(duration<double>)>;
/// Makes update number N of a system. Those of a server are its steps.
using Update = std::function<void(std::uint64_t number)>;

struct System {
  std::string name;
  Measure look_up;
  Update update{};  ///< None: the system has no rows.
};

/// Makes updates at a pace, in a thread, as long as it exists.
class UpdatesBeside {
 public:
  /// @param first number of the first update; afterwards that of the next one
  UpdatesBeside(Update const& update, int per_second, std::uint64_t& first)
      : thread_([&update, per_second, &first](std::stop_token const& stop) {
          auto const begin = steady_clock::now();
          for (std::uint64_t done = 0; !stop.stop_requested(); ++done) {
            std::this_thread::sleep_until(begin + done * std::chrono::nanoseconds(seconds(1)) / per_second);
            update(first++);
          }
        }) {}

 private:
  std::jthread thread_;
};

Measure at_server(ServerClient& client, Batches const& batches, std::size_t most_in_flight = kInFlight) {
  return [&, most_in_flight](duration<double> time) {
    std::deque<Requester::CallPtr> calls;
    std::size_t number = 0, done = 0;
    auto const begin = steady_clock::now();
    for (;;) {
      bool const is_over = steady_clock::now() - begin > time;
      while (!is_over && calls.size() < most_in_flight) {
        auto const keys = batches[number++];
        calls.push_back(client.requester().start({.kind = static_cast<std::uint32_t>(hybrid::ServerRequest::kRead),
                                                  .body = hybrid::encode_lookup({}, {&keys, 1})}));
      }
      if (calls.empty()) break;
      static_cast<void>(client.requester().await(*calls.front(), kTimeout, "no rows came"));
      calls.pop_front();
      ++done;
    }
    return static_cast<double>(done) / duration<double>(steady_clock::now() - begin).count();
  };
}

/// Steps of one worker with the keys of batches from the end. Lookups take them from the begin.
Update steps_at(ServerClient& client, Batches const& batches, Settings const& settings) {
  std::vector<float> const first(settings.keys * settings.dim, 0.01F);
  return [&client, &batches, dim = settings.dim, gradients = first, rows = first](std::uint64_t number) mutable {
    hybrid::BatchId const batch{.step = number, .worker = 0};
    auto const keys = batches[kNumBatches - 1 - number % kNumBatches];
    auto const lookup = client.start_lookup(1, batch, {&keys, 1});
    std::span<float> const out(rows);
    hybrid::decode_rows(client.requester().await(*lookup, kTimeout, "no rows came"), {&dim, 1}, {}, {&out, 1});
    hybrid::PartValues const values{.rate = 0.01, .gradients = gradients};
    client.finish(*client.start_part(1, batch, {&values, 1}));
  };
}

embedding::Keys keys_of(KeyList const& list) { return {.ids = list.ids, .tables = list.tables, .counts = list.counts}; }

/// A table that one lock guards, as calls that change it must not overlap with others.
class LockedTable {
 public:
  LockedTable(embedding::ConcurrentTable& table, Settings const& settings)
      : table_(table), rows_(settings.keys), updated_(settings.keys), read_(settings.keys * settings.dim) {}

  void look_up(KeyList const& list, std::span<float> out) {
    std::lock_guard const lock(mutex_);
    table_.find(keys_of(list), rows_, {});
    table_.gather(keys_of(list), rows_, out);
  }
  /// One thread at a time.
  void update(KeyList const& list, std::span<float const> gradients) {
    look_up(list, read_);  // Gradients follow from rows.
    std::lock_guard const lock(mutex_);
    table_.find(keys_of(list), updated_, {});
    table_.update(keys_of(list), updated_, gradients, {.learning_rate = 0.01, .number = 1});
  }

 private:
  embedding::ConcurrentTable& table_;
  std::mutex mutex_;
  std::vector<embedding::RowId> rows_, updated_;
  std::vector<float> read_;
};

/// @param look_up function of keys and output
template <class LookUp>
Measure at_table(Batches const& batches, Settings const& settings, LookUp look_up) {
  return [&batches, look_up, out = std::vector<float>(settings.keys * settings.dim)](duration<double> time) mutable {
    std::size_t done = 0;
    auto const begin = steady_clock::now();
    for (; steady_clock::now() - begin < time; ++done) look_up(batches[done], out);
    return static_cast<double>(done) / duration<double>(steady_clock::now() - begin).count();
  };
}

/// @param update function of keys and gradients
template <class ApplyUpdate>
Update updates_at_table(Batches const& batches, Settings const& settings, ApplyUpdate update) {
  return [&batches, update, gradients = std::vector<float>(settings.keys * settings.dim, 0.01F)](
             std::uint64_t number) mutable { update(batches[kNumBatches - 1 - number % kNumBatches], gradients); };
}

void set_no_delay(int socket) {
  int const on = 1;
  check(::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), "setsockopt");
}

/// Bytes of a lookup and of its rows.
std::pair<std::size_t, std::size_t> sizes_of(Settings const& settings) {
  return {settings.keys * (sizeof(std::uint64_t) + 2 * sizeof(std::uint32_t)),
          settings.keys * settings.dim * sizeof(float)};
}

/// The other end of raw_tcp: answers requests of one size by answers of another.
class RawServer {
 public:
  explicit RawServer(Settings const& settings) : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    check(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), "bind");
    check(::listen(listener_.get(), 1), "listen");
    socklen_t length = sizeof address;
    check(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length), "getsockname");
    port_ = ntohs(address.sin_port);
    thread_ = std::jthread([this, settings] {
      base::FileDescriptor const peer(::accept(listener_.get(), nullptr, nullptr));
      if (!peer.valid()) return;  // Nobody has connected.
      set_no_delay(peer.get());
      auto const [request, answer] = sizes_of(settings);
      std::vector<std::byte> in(request);
      std::vector<std::byte> const out(answer);
      while (receive_all(peer.get(), in)) send_all(peer.get(), out);
    });
  }
  ~RawServer() { ::shutdown(listener_.get(), SHUT_RDWR); }  // Ends accept().
  RawServer(RawServer const&) = delete;
  RawServer& operator=(RawServer const&) = delete;
  [[nodiscard]] std::uint16_t port() const { return port_; }

 private:
  base::FileDescriptor listener_;
  std::uint16_t port_ = 0;
  std::jthread thread_;
};

base::FileDescriptor connect_raw(int port) {
  base::FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  check(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), "connect");
  set_no_delay(socket.get());
  return socket;
}

Measure at_raw_socket(int socket, Settings const& settings) {
  return [socket, settings](duration<double> time) {
    auto const [request, answer] = sizes_of(settings);
    std::vector<std::byte> const out(request);
    std::vector<std::byte> in(answer);
    std::size_t done = 0, in_flight = 0;
    auto const begin = steady_clock::now();
    for (;;) {
      bool const is_over = steady_clock::now() - begin > time;
      for (; !is_over && in_flight < kInFlight; ++in_flight) send_all(socket, out);
      if (in_flight == 0) break;
      if (!receive_all(socket, in)) throw std::runtime_error("the raw peer has gone");
      --in_flight;
      ++done;
    }
    return static_cast<double>(done) / duration<double>(steady_clock::now() - begin).count();
  };
}

/// Rows in a Redis server, by two connections: one for lookups, and one for updates.
class RedisRows {
 public:
  explicit RedisRows(Settings const& settings)
      : settings_(settings),
        lookups_(settings.redis, settings.dim * sizeof(float)),
        updates_(settings.redis, settings.dim * sizeof(float)),
        rows_(settings.keys * settings.dim),
        updated_(settings.keys * settings.dim) {
    for (std::uint64_t first = 0; first < settings.rows; first += settings.keys) {
      std::vector<std::uint64_t> ids;
      for (auto id = first; id < std::min(first + settings.keys, settings.rows); ++id) ids.push_back(id);
      updates_.set(ids, std::as_bytes(std::span(updated_).first(ids.size() * settings.dim)));
    }
  }

  [[nodiscard]] Measure look_up(Batches const& batches) {
    return [&](duration<double> time) {
      std::size_t number = 0, done = 0, in_flight = 0;
      auto const begin = steady_clock::now();
      for (;;) {
        bool const is_over = steady_clock::now() - begin > time;
        for (; !is_over && in_flight < kInFlight; ++in_flight) lookups_.start_get(batches[number++].ids);
        if (in_flight == 0) break;
        lookups_.finish_get(settings_.keys, std::as_writable_bytes(std::span(rows_)));
        --in_flight;
        ++done;
      }
      return static_cast<double>(done) / duration<double>(steady_clock::now() - begin).count();
    };
  }
  /// Reads rows, changes them and writes them back, as a store without optimizers needs.
  [[nodiscard]] Update update(Batches const& batches) {
    return [&](std::uint64_t number) {
      auto const keys = batches[kNumBatches - 1 - number % kNumBatches];
      updates_.start_get(keys.ids);
      updates_.finish_get(settings_.keys, std::as_writable_bytes(std::span(updated_)));
      for (auto& value : updated_) value -= 0.01F;
      updates_.set(keys.ids, std::as_bytes(std::span(updated_)));
    };
  }

 private:
  Settings const& settings_;
  RedisClient lookups_, updates_;
  std::vector<float> rows_, updated_;
};

/// A link to a server that is a thread of this process.
class OwnLink {
 public:
  explicit OwnLink(hybrid::ParameterServer& server) {
    auto const options = options_of(comm::Transport::kInproc);
    auto other = std::async(std::launch::async, [&] { return comm::Group::connect(1, 2, store_, options); });
    responder_.emplace(comm::Group::connect(0, 2, store_, options), hybrid::ResponderOptions{.incarnation = 1},
                       [&server](hybrid::Request& request) { server.handle(request); });
    client_.emplace(other.get(), kTimeout);
  }
  [[nodiscard]] ServerClient& operator*() const { return *client_; }

 private:
  comm::MemoryStore store_;
  std::optional<hybrid::Responder> responder_;
  mutable std::optional<ServerClient> client_;
};

void serve(Settings const& settings, comm::Store& store, RankBarrier& barrier) {
  hybrid::ParameterServer server;
  auto const handle = [&](hybrid::Request& request) { server.handle(request); };
  hybrid::RequestService const tcp({.address = "127.0.0.1:0", .link = options_of(comm::Transport::kTcp)}, handle);
  hybrid::RequestService const shm({.address = "127.0.0.1:0", .link = options_of(comm::Transport::kShm)}, handle);
  RawServer const raw(settings);
  store.set("tcp", tcp.address());
  store.set("shm", shm.address());
  store.set("raw", std::to_string(raw.port()));
  // A barrier would spin, beside the threads that are measured.
  static_cast<void>(store.get("done", seconds(settings.time_limit)));
  barrier.wait();
}

/// The systems that are measured, with all that they need.
class Systems {
 public:
  Systems(Settings const& settings, comm::Store& store) : settings_(settings), store_(store), batches_(settings) {
    add_tables();
    add_own_server();
    add_other_server();
    if (is_chosen("raw_tcp")) {
      raw_ = connect_raw(std::stoi(store.get("raw", kTimeout)));
      all_.push_back({"raw_tcp", at_raw_socket(raw_.get(), settings)});
    }
    if (!settings.redis.empty() && is_chosen("redis")) {
      redis_.emplace(settings);
      all_.push_back({"redis", redis_->look_up(batches_), redis_->update(batches_)});
    }
    if (all_.empty()) throw SettingsError("--systems: none of these can be measured: " + settings.systems);
  }
  [[nodiscard]] std::vector<System> const& all() const { return all_; }

 private:
  [[nodiscard]] bool is_chosen(std::string const& name) const {
    return settings_.systems.empty() || ("," + settings_.systems + ",").find("," + name + ",") != std::string::npos;
  }

  void add_tables() {
    if (!is_chosen("table") && !is_chosen("stripes")) return;
    table_ = embedding::make_concurrent_table(tables_of(settings_).front().options);
    for (std::uint64_t id = 0; id < settings_.rows; ++id) {
      embedding::RowId row{};
      table_->find_or_insert({.ids = {&id, 1}, .table = kTable}, {&row, 1}, {});
    }
    locked_.emplace(*table_, settings_);
    if (is_chosen("table")) {
      all_.push_back({"table",
                      at_table(batches_, settings_,
                               [this](KeyList const& keys, std::span<float> out) { locked_->look_up(keys, out); }),
                      updates_at_table(batches_, settings_, [this](KeyList const& keys, std::span<float const> by) {
                        locked_->update(keys, by);
                      })});
    }
    if (is_chosen("stripes")) {
      auto const read = [this](KeyList const& keys, std::span<float> out) { table_->read(keys_of(keys), out, {}); };
      all_.push_back({"stripes", at_table(batches_, settings_, read),
                      updates_at_table(batches_, settings_,
                                       [this, read, rows = std::vector<float>(settings_.keys * settings_.dim)](
                                           KeyList const& keys, std::span<float const> by) mutable {
                                         read(keys, rows);
                                         table_->update_keys(keys_of(keys), by, {.learning_rate = 0.01, .number = 1});
                                       })});
    }
  }

  /// Lookups and updates have a client each, since a thread asks at a time.
  void add_own_server() {
    if (!is_chosen("in_process") && !is_chosen("thread")) return;
    hybrid::RequestHandler const handler = [this](hybrid::Request& request) { own_.handle(request); };
    own_client_.emplace(handler, kTimeout);
    own_steps_ = fill(*own_client_, settings_);
    if (is_chosen("in_process")) {
      all_.push_back({"in_process", at_server(*own_client_, batches_, 1), steps(*own_client_, own_steps_)});
    }
    if (is_chosen("thread")) {
      links_.emplace(own_);
      updates_links_.emplace(own_);
      all_.push_back({"thread", at_server(**links_, batches_), steps(**updates_links_, own_steps_)});
    }
  }

  void add_other_server() {
    for (auto const& [name, transport] : {std::pair{"shm", comm::Transport::kShm}, {"tcp", comm::Transport::kTcp}}) {
      if (!is_chosen(name)) continue;
      auto const dial = [&, key = name, by = transport]() -> ServerClient& {
        return *clients_.emplace_back(
            std::make_unique<ServerClient>(comm::dial(store_.get(key, kTimeout), options_of(by)), kTimeout));
      };
      auto &lookups = dial(), &updates = dial();
      if (other_steps_ == 0) other_steps_ = fill(lookups, settings_);
      all_.push_back({name, at_server(lookups, batches_), steps(updates, other_steps_)});
    }
  }

  /// Steps of a server go on from one system to the other.
  [[nodiscard]] Update steps(ServerClient& client, std::uint64_t& next) {
    return [&next, step = steps_at(client, batches_, settings_)](std::uint64_t) { step(next++); };
  }

  Settings const& settings_;
  comm::Store& store_;
  Batches const batches_;
  std::unique_ptr<embedding::ConcurrentTable> table_;
  std::optional<LockedTable> locked_;
  hybrid::ParameterServer own_;
  std::optional<ServerClient> own_client_;
  std::optional<OwnLink> links_, updates_links_;
  std::uint64_t own_steps_ = 0, other_steps_ = 0;
  std::vector<std::unique_ptr<ServerClient>> clients_;
  base::FileDescriptor raw_;
  std::optional<RedisRows> redis_;
  std::vector<System> all_;
};

void measure(Settings const& settings, comm::Store& store, RankBarrier& barrier) {
  Systems const chosen(settings, store);
  auto const& systems = chosen.all();
  // By system, and whether there are updates beside.
  std::map<std::pair<std::string, bool>, std::vector<double>> times;
  std::map<std::string, std::vector<double>> times_of_updates;
  std::map<std::string, std::uint64_t> num_updates, num_beside;
  std::map<std::string, double> update_time;
  for (int round = -1; round < settings.rounds; ++round) {
    for (auto const& [name, look_up, update] : systems) {
      for (bool const has_updates : {false, true}) {
        if (has_updates && !update) continue;
        std::optional<UpdatesBeside> beside;
        auto const begin = steady_clock::now();
        auto const before = num_updates[name];
        if (has_updates) beside.emplace(update, settings.updates, num_updates[name]);
        double const rate = look_up(std::chrono::milliseconds(settings.milliseconds));
        beside.reset();
        num_beside[name] += num_updates[name] - before;
        if (round >= 0) times[{name, has_updates}].push_back(1 / rate);
        if (has_updates) update_time[name] += duration<double>(steady_clock::now() - begin).count();
      }
      if (!update) continue;
      auto const begin = steady_clock::now();
      std::size_t done = 0;
      for (; steady_clock::now() - begin < std::chrono::milliseconds(settings.milliseconds); ++done) {
        update(num_updates[name]++);
      }
      auto const time = duration<double>(steady_clock::now() - begin).count();
      if (round >= 0) times_of_updates[name].push_back(time / static_cast<double>(done));
    }
  }
  auto const make_point = [&](std::string const& name, char const* operation, int updates,
                              std::vector<double> const& samples) {
    auto const summary = summarize(samples);
    JsonObject point, params;
    params.add("rows", settings.rows).add("dim", settings.dim).add("keys", settings.keys).add("in_flight", kInFlight);
    params.add("operation", operation).add("updates", updates);
    point.add("name", "parameter_server").add("params", params).add("system", name);
    point.add("median_s", summary.median_s).add("p5_s", summary.p5_s).add("p95_s", summary.p95_s);
    point.add("samples", summary.samples).add("rate", static_cast<double>(settings.keys) / summary.median_s);
    return point.add("unit", "rows/s");
  };
  for (auto const& [name_and_beside, samples] : times) {
    auto const& [name, has_updates] = name_and_beside;
    auto point = make_point(name, "lookup", has_updates ? settings.updates : 0, samples);
    if (has_updates) point.add("update_rate", static_cast<double>(num_beside.at(name)) / update_time.at(name));
    print_point(point);
  }
  for (auto const& [name, samples] : times_of_updates) print_point(make_point(name, "update", 0, samples));
  store.set("done", "");
  barrier.wait();
}

int run(Arguments arguments) {
  Settings settings;
  parse_options(arguments,
                {{"--rows", number(settings.rows, std::uint64_t{1000}, std::uint64_t{1} << 30)},
                 {"--dim", number(settings.dim, std::size_t{1}, std::size_t{4096})},
                 {"--keys", number(settings.keys, std::size_t{1}, std::size_t{1} << 20)},
                 {"--updates", number(settings.updates, 1, 1'000'000)},
                 {"--rounds", number(settings.rounds, 1, 1000)},
                 {"--milliseconds", number(settings.milliseconds, 1, 60'000)},
                 {"--systems", Setter([&](std::string_view, std::string_view names) { settings.systems = names; })},
                 {"--redis", Setter([&](std::string_view, std::string_view path) { settings.redis = path; })},
                 {"--time-limit", number(settings.time_limit, 1, 86'400)}});
  if (settings.keys > settings.rows) throw SettingsError("--keys: at most as many as --rows");
  TemporaryDirectory const folder;
  return run_forked_ranks(2, [&](int rank) {
    return run_rank(settings, {.rank = rank, .ranks = 2}, folder.path(), [&](RankBarrier& barrier) {
      comm::FileStore store(folder.path() / "store");
      rank == 0 ? serve(settings, store, barrier) : measure(settings, store, barrier);
    });
  });
}

}  // namespace

}  // namespace headway::benchmarks

int main(int argc, char** argv) {
  return headway::benchmarks::run_main(argc, argv, headway::benchmarks::usage, headway::benchmarks::run);
}
