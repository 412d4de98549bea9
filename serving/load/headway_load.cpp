// SPDX-License-Identifier: Apache-2.0

// Drives load at ranks that serve a package, and prints latencies: `headway load`.

#include "headway/base/program_options.hpp"
#include "headway/base/status.hpp"
#include "headway/serving/package.hpp"
#include "load_generator.hpp"
#include "request_log.hpp"
#include "request_source.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace headway::serving {

namespace {

constexpr char const* kUsage = R"(usage: headway_load --package FOLDER [option...]
  --package FOLDER   the package that is served, for the names of its features
  --address A,B      addresses of the ranks, which take turns (default: 127.0.0.1:8001)
  --name NAME        of the model (default: model)
  --tls-ca FILE      encrypt connections; who signs the servers' certificates, in PEM format
  --tls-certificate FILE, --tls-key FILE   of this client, if servers want them
  --rate R           requests a second of an open loop, at random times (default: 100)
  --clients N        closed loop instead: N clients that wait for their replies
  --seconds S        time that is measured (default: 10); SIGINT or SIGTERM end it early
  --warmup MS        time before it (default: 1000)
  --timeout MS       deadline of a request, from when it was due (default: 1000)
  --log FILE         requests of a log instead of drawn ones, at their own times unless --rate or --clients is given;
                     request_log.hpp has its format
  --speed X          plays the log X times as fast (default: 1)
  --rows N[:M][,...] items of a request: from N to M, or one of a list; each number is as likely (default: 64)
  --users N          users of a request, for models that have some (default: 1)
  --history N        mean length of a sequence (default: 50)
  --list N           ids of a list of a feature that is pooled (default: 1)
  --ids N            ids of a feature (default: 1000000)
  --zipf S           exponent of the law of ids; 0: uniform (default: 1.05)
  --distinct N       different requests; they repeat after that (default: 1000)
  --seed N           of requests and times (default: 1)
  --json FILE        append one JSON line there
  --replies FILE     write a JSON line there for each request, version and reply: their CRC-32, and how often it came
)";

struct Arguments {
  std::filesystem::path package, json, log, replies;
  std::string name = "model";
  RequestLaw law;
  LoadOptions load{.addresses = {"127.0.0.1:8001"}};
  std::size_t distinct = 1000, clients = 0;
  double speed = 1, rate = 0;
  std::int64_t seconds = 10;
};

/// Parses `N`, `N:M`, or several of them behind commas.
std::vector<std::size_t> parse_rows(std::string const& value) {
  std::vector<std::size_t> rows;
  std::istringstream all(value);
  for (std::string range; std::getline(all, range, ',');) {
    auto const colon = range.find(':');
    std::size_t first = 0, last = 0;
    base::ProgramOptions both;
    both.add_number("--rows", first, 1);
    both.add_number("--most-rows", last, 1);
    both.parse({"--rows", range.substr(0, colon), "--most-rows",
                colon == std::string::npos ? range : range.substr(colon + 1)});
    base::expects(first <= last && last <= 1'000'000, "--rows N:M needs N <= M <= 1000000");
    for (auto each = first; each <= last; ++each) rows.push_back(each);
  }
  base::expects(!rows.empty(), "--rows needs a number");
  return rows;
}

Arguments parse(std::vector<std::string> const& words) {
  Arguments arguments;
  base::ProgramOptions options;
  options.add_path("--package", arguments.package);
  options.add_path("--json", arguments.json);
  options.add_path("--replies", arguments.replies);
  options.add_text("--name", arguments.name);
  options.add("--address", [&](std::string const& value) {
    arguments.load.addresses.clear();
    std::istringstream all(value);
    for (std::string address; std::getline(all, address, ',');) arguments.load.addresses.push_back(address);
  });
  options.add_path("--tls-ca", arguments.load.tls.authority);
  options.add_path("--tls-certificate", arguments.load.tls.certificate);
  options.add_path("--tls-key", arguments.load.tls.key);
  options.add_path("--log", arguments.log);
  options.add_real("--speed", arguments.speed);
  options.add_real("--rate", arguments.rate);
  options.add_number("--clients", arguments.clients, 1);
  options.add_number("--seconds", arguments.seconds, 1);
  options.add_duration("--warmup", arguments.load.warmup, 0);
  options.add_duration("--timeout", arguments.load.timeout, 1);
  options.add("--rows", [&](std::string const& value) { arguments.law.rows = parse_rows(value); });
  options.add_number("--users", arguments.law.users, 1);
  options.add_number("--history", arguments.law.history, 0);
  options.add_number("--list", arguments.law.list_length, 0);
  options.add_number("--ids", arguments.law.num_ids, 1);
  options.add_real("--zipf", arguments.law.zipf);
  options.add_number("--distinct", arguments.distinct, 1);
  options.add_number("--seed", arguments.load.seed, 0);
  options.parse(words);
  base::expects(!arguments.package.empty(), "--package is missing");
  base::expects(!arguments.load.addresses.empty(), "--address names no rank");
  base::expects(arguments.clients == 0 || arguments.rate == 0,
                "--rate is of an open loop, and --clients of a closed one");
  base::expects(arguments.speed > 0, "--speed must be above 0");
  if (arguments.clients > 0) {
    arguments.load.num_clients = arguments.clients;
    arguments.load.requests_per_s = 0;
  } else if (arguments.rate > 0) {
    arguments.load.requests_per_s = arguments.rate;
  }
  arguments.load.keeps_replies = !arguments.replies.empty();
  arguments.load.duration = std::chrono::seconds(arguments.seconds);
  return arguments;
}

double ms(std::chrono::nanoseconds time) { return std::chrono::duration<double, std::milli>(time).count(); }

nlohmann::json json_of(LoadResult const& result) {
  nlohmann::json line{{"offered_per_s", result.offered_per_s},
                      {"answered_per_s", static_cast<double>(result.answered.count()) / result.seconds},
                      {"answered_rows_per_s", static_cast<double>(result.answered_rows) / result.seconds},
                      {"seconds", result.seconds},
                      {"statuses", result.statuses},
                      {"errors", result.errors},
                      {"versions", result.versions},
                      {"sent_late_p99_ms", ms(result.sent_late.quantile(0.99))},
                      {"refused_p99_ms", ms(result.refused.quantile(0.99))}};
  auto const count = static_cast<double>(std::max<std::uint64_t>(1, result.answered.count()));
  line["mean_ms"] = ms(result.answered.sum()) / count;
  for (auto const& [name, q] : {std::pair("p50_ms", 0.5), {"p90_ms", 0.9}, {"p99_ms", 0.99}, {"p999_ms", 0.999}}) {
    line[name] = ms(result.answered.quantile(q));
  }
  return line;
}

void print(LoadResult const& result) {
  std::printf("%.1f requests and %.0f rows answered a second\n",
              static_cast<double>(result.answered.count()) / result.seconds,
              static_cast<double>(result.answered_rows) / result.seconds);
  std::printf("latency from when a request was due: p50 %.2f ms, p90 %.2f ms, p99 %.2f ms, p99.9 %.2f ms\n",
              ms(result.answered.quantile(0.5)), ms(result.answered.quantile(0.9)), ms(result.answered.quantile(0.99)),
              ms(result.answered.quantile(0.999)));
  for (auto const& [status, count] : result.statuses) std::printf("%s: %zu\n", status.c_str(), std::size_t{count});
  for (auto const& [error, count] : result.errors) std::printf("  %zu times: %s\n", std::size_t{count}, error.c_str());
  if (ms(result.sent_late.quantile(0.99)) > 1) {
    std::printf("note: requests were sent up to %.1f ms late (p99): this host has no processor left for the load\n",
                ms(result.sent_late.quantile(0.99)));
  }
}

void write_replies(std::filesystem::path const& path, LoadResult const& result) {
  std::ofstream file(path);
  for (auto const& [reply, count] : result.replies) {
    file << nlohmann::json{{"request", reply.request},
                           {"version", reply.version},
                           {"crc32", reply.crc32},
                           {"count", count}}
         << '\n';
  }
  if (!file.flush()) throw base::SystemError("writing replies", errno, "to " + path.string());
}

std::atomic<bool> has_signal{false};
static_assert(std::atomic<bool>::is_always_lock_free);

/// The first signal ends the load with its results, and the next one the program.
void end_load(int signal) {
  has_signal = true;
  std::signal(signal, SIG_DFL);
}

void run(Arguments const& arguments) {
  auto const manifest = read_package(arguments.package);
  std::vector<inference::ModelInferRequest> requests;
  auto load = arguments.load;
  if (arguments.log.empty()) {
    RequestSource source(manifest, arguments.law, arguments.name, load.seed);
    for (std::size_t i = 0; i < arguments.distinct; ++i) requests.push_back(source.next());
  } else {
    auto log = read_request_log(arguments.log, manifest, arguments.name);
    requests = std::move(log.requests);
    if (arguments.clients == 0 && arguments.rate == 0) {
      base::expects(!log.times.empty(), arguments.log.string() + " has no times: --rate or --clients is needed");
      for (auto const time : log.times) {
        load.times.push_back(std::chrono::duration_cast<std::chrono::nanoseconds>(time / arguments.speed));
      }
    }
  }
  load.must_stop = [] { return has_signal.load(); };
  std::signal(SIGINT, end_load);
  std::signal(SIGTERM, end_load);
  auto const result = generate_load(requests, load);
  print(result);
  if (!arguments.replies.empty()) write_replies(arguments.replies, result);
  if (!arguments.json.empty()) std::ofstream(arguments.json, std::ios::app) << json_of(result) << '\n';
}

}  // namespace

}  // namespace headway::serving

int main(int argc, char** argv) {
  using namespace headway::serving;
  std::vector<std::string> const words(argv + 1, argv + argc);
  int const status = headway::base::run_program("headway_load", kUsage, words, [&] { run(parse(words)); });
  // Threads of gRPC still end calls, and would use what the destructors of its globals free.
  std::fflush(nullptr);
  std::_Exit(status);
}
