// SPDX-License-Identifier: Apache-2.0

// A rank that serves a package: `headway serve` starts one for each rank.

#include "batch_trace.hpp"
#include "compiled_model.hpp"
#include "engine_metrics.hpp"
#include "front_server.hpp"
#include "headway/base/log.hpp"
#include "headway/base/metrics_server.hpp"
#include "headway/base/program_options.hpp"
#include "headway/base/status.hpp"
#include "headway/comm/group_environment.hpp"
#include "headway/serving/engine.hpp"
#include "headway/serving/generations.hpp"
#include "headway/serving/version_keeper.hpp"

#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace headway::serving {

namespace {

constexpr char const* kUsage = R"(usage: headway_serve --package FOLDER [option...]
  --package FOLDER      what `headway export` has written
  --name NAME           of the model (default: model)
  --rank R, --size N    this rank of N (default: 0 of 1)
  --store FOLDER        empty folder that all ranks share, for more than one rank
  --group NAME          distinguishes groups that share the store (default: serving)
  --address HOST:PORT   where this rank listens (default: 127.0.0.1:8001)
  --max-rows N          most items of a batch (default: 512)
  --batch-delay US      longest wait of a request for others, in microseconds (default: 1000)
  --max-in-flight N     batches between keys and replies (default: 3; with --fetch ring K + 1)
  --fetch KIND          how rows come from other ranks: pairwise (default), or ring: all-to-alls with bounded lag
  --max-lag K           with --fetch ring: batches that a rank may be ahead of the slowest one (default: 2)
  --max-queued-rows N   items that may wait; more are refused (default: 65536)
  --max-ids N           most ids of a feature in a request (default: 262144)
  --model-threads N     threads of matrix products and attention (default: 1)
  --cuda-device I       index of the device for packages that are compiled for CUDA (default: 0)
  --metrics HOST:PORT   where Prometheus finds the counters of this rank (default: nowhere)
  --tls-certificate FILE, --tls-key FILE   encrypt connections; files in PEM format
  --tls-client-ca FILE  clients need a certificate that one of these has signed
  --trace FILE          write the last batches there for Perfetto, as FILE.rankR, at the end and on SIGUSR1
  --timeout MS          time limit of requests without a deadline (default: 10000)
  --key-delay US        for benchmarks: mean of a random time before the keys of a batch are known (default: 0)
)";

struct Arguments {
  std::filesystem::path package, store;
  std::string group = "serving", metrics;
  std::filesystem::path trace;
  int rank = 0, size = 1, model_threads = 1, max_lag = 2, cuda_device = 0;
  bool is_ring = false;
  std::chrono::microseconds key_delay{0};
  EngineOptions engine{.batch_delay = std::chrono::microseconds(1000)};
  FrontOptions front;
};

Arguments parse(std::vector<std::string> const& words) {
  Arguments arguments;
  base::ProgramOptions options;
  options.add_path("--package", arguments.package);
  options.add_path("--store", arguments.store);
  options.add_text("--group", arguments.group);
  options.add_text("--name", arguments.front.model_name);
  options.add_text("--metrics", arguments.metrics);
  options.add_text("--address", arguments.front.address);
  options.add_path("--tls-certificate", arguments.front.tls.certificate);
  options.add_path("--tls-key", arguments.front.tls.key);
  options.add_path("--tls-client-ca", arguments.front.tls.authority);
  options.add_path("--trace", arguments.trace);
  options.add_number("--rank", arguments.rank, 0);
  options.add_number("--size", arguments.size, 1);
  options.add_number("--max-rows", arguments.engine.max_rows, 1);
  options.add_number("--max-ids", arguments.engine.max_ids, 1);
  options.add_number("--max-queued-rows", arguments.engine.max_queued_rows, 1);
  options.add("--fetch", [&](std::string const& value) {
    base::expects(value == "pairwise" || value == "ring", "--fetch must be pairwise or ring, not \"" + value + "\"");
    arguments.is_ring = value == "ring";
  });
  options.add_number("--max-lag", arguments.max_lag, 0);
  options.add_number("--cuda-device", arguments.cuda_device, 0);
  options.add_number("--model-threads", arguments.model_threads, 1);
  options.add_duration("--batch-delay", arguments.engine.batch_delay, 0);
  options.add_duration("--timeout", arguments.front.default_timeout, 1);
  options.add_duration("--key-delay", arguments.key_delay, 0);
  std::size_t max_in_flight = 0;
  options.add_number("--max-in-flight", max_in_flight, 1);
  options.parse(words);
  if (arguments.is_ring) arguments.engine.max_in_flight = static_cast<std::size_t>(arguments.max_lag) + 1;
  if (max_in_flight > 0) arguments.engine.max_in_flight = max_in_flight;
  if (arguments.package.empty()) throw base::UsageError("--package is missing");
  if (arguments.rank >= arguments.size) throw base::UsageError("--rank must be below --size");
  if (arguments.size > 1 && arguments.store.empty()) throw base::UsageError("several ranks need --store");
  return arguments;
}

Generations make_generations(Arguments const& arguments) {
  comm::GroupOptions options;
  options.name = arguments.group;
  // A receive for the keys of peers is always pending. Deadlines of requests are the engine's.
  options.timeout = std::chrono::hours(24 * 365);
  options.num_channels = 2;  // A ring has one for keys and one for rows.
  options.max_lag = arguments.is_ring ? arguments.max_lag : 0;
  comm::read_group_environment(options);
  return {arguments.store, arguments.rank, arguments.size, options};
}

/// Connects this rank with the others, again after each loss of a rank, and keeps all of them on one version.
class Connector {
 public:
  Connector(Arguments const& arguments, VersionKeeper& versions)
      : generations_(make_generations(arguments)),
        is_alone_(arguments.size == 1),
        is_ring_(arguments.is_ring),
        versions_(versions) {}

  /// @returns null if `may_go_on` ended the wait for other ranks
  /// @throws PackageError if a rank cannot load the version of rank 0
  [[nodiscard]] std::unique_ptr<RowFetcher> connect(std::function<bool()> const& may_go_on) {
    if (!is_alone_) {
      group_ = nullptr;  // The old one is not needed to form another.
      group_ = generations_.connect(may_go_on);
      if (group_ == nullptr) return nullptr;
      versions_.agree(*group_);
    }
    auto fetcher = is_ring_ ? make_ring_fetcher(group_, nullptr) : make_pairwise_fetcher(group_, nullptr);
    fetcher->add_version(versions_.current().number(), versions_.current().tables);
    return fetcher;
  }

  /// Follows new versions, and reconnects the engine whenever it has lost a rank, until `stop` is requested.
  void keep(Engine& engine, FrontServer& front, std::stop_token const& stop) {
    setpriority(PRIO_PROCESS, 0, 19);  // This thread's: loading a version must not slow requests down.
    while (!stop.stop_requested()) {
      versions_.run(engine, group_.get(), stop);
      if (!engine.wait_for_loss(stop)) return;
      front.update_health();
      try {
        auto fetcher = connect([&] { return !stop.stop_requested(); });
        if (fetcher == nullptr) return;
        engine.reconnect(versions_.current().model, std::move(fetcher));
        base::log(base::LogLevel::kWarning, "serving", group_ == nullptr ? 0 : group_->rank(),
                  "requests are taken again");
      } catch (std::exception const& error) {
        base::log(base::LogLevel::kWarning, "serving", -1, std::string("connecting again: ") + error.what());
        std::this_thread::sleep_for(std::chrono::seconds(1));
        continue;
      }
      front.update_health();
    }
  }

 private:
  Generations generations_;
  bool is_alone_, is_ring_;
  VersionKeeper& versions_;
  std::shared_ptr<comm::Group> group_;
};

LoadedVersion load_here(std::filesystem::path const& package, Arguments const& arguments) {
  auto const folder = std::filesystem::weakly_canonical(package);
  auto manifest = read_package(folder);
  auto tables = read_tables(manifest, folder, arguments.rank, arguments.size, nullptr);
  auto dense = load_compiled_model(manifest, folder, arguments.model_threads, arguments.cuda_device);
  return {.folder = folder,
          .model = std::make_shared<ServedModel>(std::move(manifest), std::move(dense)),
          .tables = std::move(tables)};
}

/// Loads on a thread that ends. Compiled code, of which a trial batch is run, keeps objects for each thread until it
/// ends, and with them its library in memory.
LoadedVersion load(std::filesystem::path const& package, Arguments const& arguments) {
  return std::async(std::launch::async, [&] { return load_here(package, arguments); }).get();
}

/// SIGTERM and SIGINT end the server, and SIGUSR1 writes a trace. They are blocked in all threads.
sigset_t block_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

/// Has a signal come that ends the server?
bool must_end(sigset_t const& signals) {
  sigset_t pending;
  sigpending(&pending);
  return (sigismember(&signals, SIGTERM) == 1 && sigismember(&pending, SIGTERM) == 1) ||
         (sigismember(&signals, SIGINT) == 1 && sigismember(&pending, SIGINT) == 1);
}

void serve(Arguments arguments, sigset_t const& signals) {
  auto const note = arguments.store.empty() ? std::filesystem::path() : arguments.store / ("served." + arguments.group);
  VersionKeeper versions(
      arguments.package, [&](auto const& folder) { return load(folder, arguments); }, note);
  Connector connector(arguments, versions);
  auto fetcher = connector.connect([&] { return !must_end(signals); });
  if (fetcher == nullptr) return;
  auto const model = versions.current().model;
  if (arguments.key_delay.count() > 0) {
    arguments.engine.delay_before_keys =
        [random = std::mt19937_64(static_cast<std::uint64_t>(arguments.rank)),
         draw = std::uniform_int_distribution<std::int64_t>(0, 2 * arguments.key_delay.count())]() mutable {
          return std::chrono::nanoseconds(std::chrono::microseconds(draw(random)));
        };
  }
  BatchTrace trace(arguments.rank);
  auto const write_trace = [&] {
    if (arguments.trace.empty()) return;
    auto const path = path_of_rank(arguments.trace, arguments.rank);
    try {
      trace.write(path);
    } catch (base::SystemError const& error) {
      base::log(base::LogLevel::kWarning, "serving", arguments.rank, error.what());
    }
  };
  if (!arguments.trace.empty()) {
    arguments.engine.on_batch = [&trace](BatchRecord const& batch) { trace.add(batch); };
  }
  Engine engine(model, std::move(fetcher), arguments.engine);
  std::optional<FrontServer> listener;
  std::optional<base::MetricsServer> metrics;
  try {
    listener.emplace(engine, arguments.front);
    if (!arguments.metrics.empty()) metrics.emplace(arguments.metrics, [&engine] { return metrics_of(engine); });
  } catch (std::exception const& error) {
    std::fprintf(stderr, "headway_serve: %s\n", error.what());
    std::_Exit(1);  // The destructor of the engine would wait for the other ranks, which serve on.
  }
  auto& front = *listener;
  std::printf("rank %d of %d serves version %s of %s on port %d\n", arguments.rank, arguments.size,
              model->manifest().version.c_str(), arguments.front.model_name.c_str(), front.port());
  std::fflush(stdout);
  std::jthread keeper([&](std::stop_token const& stop) { connector.keep(engine, front, stop); });
  for (int signal = 0; signal != SIGTERM && signal != SIGINT;) {
    sigwait(&signals, &signal);
    if (signal == SIGUSR1) write_trace();
  }
  keeper.request_stop();
  engine.refuse_new();  // At once: the keeper may be reading a version.
  front.update_health();
  keeper.join();
  engine.drain();
  write_trace();
}

}  // namespace

}  // namespace headway::serving

int main(int argc, char** argv) {
  using namespace headway::serving;
  std::vector<std::string> const words(argv + 1, argv + argc);
  auto const signals = block_signals();
  return headway::base::run_program("headway_serve", kUsage, words, [&] { serve(parse(words), signals); });
}
