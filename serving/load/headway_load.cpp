// SPDX-License-Identifier: Apache-2.0

// Drives load at ranks that serve a package, and prints latencies: `headway load`.

#include "headway/base/status.hpp"
#include "headway/serving/package.hpp"
#include "load_generator.hpp"
#include "program_options.hpp"
#include "request_source.hpp"

#include <nlohmann/json.hpp>

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
  --seconds S        time that is measured (default: 10)
  --warmup MS        time before it (default: 1000)
  --timeout MS       deadline of a request, from when it was due (default: 1000)
  --rows N[:M]       items of a request, uniform from N to M (default: 64)
  --users N          users of a request, for models that have some (default: 1)
  --history N        mean length of a sequence (default: 50)
  --list N           ids of a list of a feature that is pooled (default: 1)
  --ids N            ids of a feature (default: 1000000)
  --zipf S           exponent of the law of ids; 0: uniform (default: 1.05)
  --distinct N       different requests; they repeat after that (default: 1000)
  --seed N           of requests and times (default: 1)
  --json FILE        append one JSON line there
)";

struct Arguments {
  std::filesystem::path package, json;
  std::string name = "model";
  RequestLaw law;
  LoadOptions load{.addresses = {"127.0.0.1:8001"}};
  std::size_t distinct = 1000, clients = 0;
  std::int64_t seconds = 10;
};

Arguments parse(std::vector<std::string> const& words) {
  Arguments arguments;
  ProgramOptions options;
  options.add_path("--package", arguments.package);
  options.add_path("--json", arguments.json);
  options.add_text("--name", arguments.name);
  options.add("--address", [&](std::string const& value) {
    arguments.load.addresses.clear();
    std::istringstream all(value);
    for (std::string address; std::getline(all, address, ',');) arguments.load.addresses.push_back(address);
  });
  options.add_path("--tls-ca", arguments.load.tls.authority);
  options.add_path("--tls-certificate", arguments.load.tls.certificate);
  options.add_path("--tls-key", arguments.load.tls.key);
  options.add_real("--rate", arguments.load.requests_per_s);
  options.add_number("--clients", arguments.clients, 1);
  options.add_number("--seconds", arguments.seconds, 1);
  options.add_duration("--warmup", arguments.load.warmup, 0);
  options.add_duration("--timeout", arguments.load.timeout, 1);
  options.add("--rows", [&](std::string const& value) {
    auto const colon = value.find(':');
    ProgramOptions both;
    both.add_number("--rows", arguments.law.least_rows, 1);
    both.add_number("--most-rows", arguments.law.most_rows, 1);
    both.parse({"--rows", value.substr(0, colon), "--most-rows",
                colon == std::string::npos ? value : value.substr(colon + 1)});
    base::expects(arguments.law.least_rows <= arguments.law.most_rows, "--rows N:M needs N <= M");
  });
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
  if (arguments.clients > 0) {
    arguments.load.num_clients = arguments.clients;
    arguments.load.requests_per_s = 0;
  }
  base::expects(arguments.clients > 0 || arguments.load.requests_per_s > 0, "--rate must be above 0");
  arguments.load.duration = std::chrono::seconds(arguments.seconds);
  return arguments;
}

double ms(std::chrono::nanoseconds time) { return std::chrono::duration<double, std::milli>(time).count(); }

nlohmann::json json_of(Arguments const& arguments, LoadResult const& result) {
  nlohmann::json line{{"offered_per_s", arguments.load.requests_per_s},
                      {"answered_per_s", static_cast<double>(result.answered.count()) / result.seconds},
                      {"answered_rows_per_s", static_cast<double>(result.answered_rows) / result.seconds},
                      {"seconds", result.seconds},
                      {"statuses", result.statuses},
                      {"versions", result.versions},
                      {"sent_late_p99_ms", ms(result.sent_late.quantile(0.99))},
                      {"refused_p99_ms", ms(result.refused.quantile(0.99))}};
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

void run(Arguments const& arguments) {
  auto const manifest = read_package(arguments.package);
  RequestSource source(manifest, arguments.law, arguments.name, arguments.load.seed);
  std::vector<inference::ModelInferRequest> requests;
  for (std::size_t i = 0; i < arguments.distinct; ++i) requests.push_back(source.next());
  auto const result = generate_load(requests, arguments.load);
  print(result);
  if (!arguments.json.empty()) std::ofstream(arguments.json, std::ios::app) << json_of(arguments, result) << '\n';
}

}  // namespace

}  // namespace headway::serving

int main(int argc, char** argv) {
  using namespace headway::serving;
  std::vector<std::string> const words(argv + 1, argv + argc);
  int const status = run_program("headway_load", kUsage, words, [&] { run(parse(words)); });
  // Threads of gRPC still end calls, and would use what the destructors of its globals free.
  std::fflush(nullptr);
  std::_Exit(status);
}
