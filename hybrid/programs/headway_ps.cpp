// SPDX-License-Identifier: Apache-2.0

// A parameter server of hybrid training: rows of embedding tables, and the staleness rule. It loads no torch.

#include "end_signals.hpp"
#include "headway/base/metrics_server.hpp"
#include "headway/base/program_options.hpp"
#include "headway/base/status.hpp"
#include "headway/comm/group_environment.hpp"
#include "headway/hybrid/server_service.hpp"

#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace headway::hybrid {

namespace {

constexpr char const* kUsage = R"(usage: headway-ps [option...]
  --address HOST:PORT   where this server listens (default: 0.0.0.0:7000)
  --job NAME            of the job; peers of another one are refused (default: hybrid)
  --threads N           of the tables (default: 1)
  --max-request-mib N   largest request in MiB (default: 256)
  --strict 0|1          1: a gradient that is not finite is an error; 0: it is dropped and counted (default: 0)
  --metrics HOST:PORT   where Prometheus finds the counters of this server (default: nowhere)
The secret of the job is in HEADWAY_GROUP_SECRET, or in the file HEADWAY_GROUP_SECRET_FILE.
The first trainer tells the tables. SIGTERM and SIGINT end the server.
)";

struct Arguments {
  int threads = 1;
  std::size_t max_request_mib = 256;
  std::string metrics;
  ServerServiceOptions service;
};

Arguments parse(std::vector<std::string> const& words) {
  Arguments arguments;
  arguments.service.service.link.name = "hybrid";
  base::ProgramOptions options;
  options.add_text("--address", arguments.service.service.address);
  options.add_text("--job", arguments.service.service.link.name);
  options.add_number("--threads", arguments.threads, 1);
  options.add_number("--max-request-mib", arguments.max_request_mib, 1);
  options.add("--strict", [&](std::string const& value) {
    base::expects(value == "0" || value == "1", "--strict must be 0 or 1, not \"" + value + "\"");
    arguments.service.server.is_strict = value == "1";
  });
  options.add_text("--metrics", arguments.metrics);
  options.parse(words);
  arguments.service.service.max_body_bytes = arguments.max_request_mib << 20;
  comm::read_group_environment(arguments.service.service.link);
  base::expects(!arguments.service.service.link.secret.empty(),
                "a server needs the secret of the job, in HEADWAY_GROUP_SECRET or HEADWAY_GROUP_SECRET_FILE");
  return arguments;
}

void serve(Arguments arguments, sigset_t const& signals) {
  if (arguments.threads > 1) {
    arguments.service.server.thread_pool = std::make_shared<base::ThreadPool>(arguments.threads);
  }
  auto const metrics_address = arguments.metrics;
  ServerService const service(std::move(arguments.service));
  std::optional<base::MetricsServer> metrics;
  if (!metrics_address.empty()) metrics.emplace(metrics_address, [&service] { return service.metrics(); });
  std::printf("listening at %s\n", service.address().c_str());
  std::fflush(stdout);
  await_end(signals);
}

}  // namespace

int run(std::vector<std::string> const& words) {
  auto const signals = block_end_signals();
  return base::run_program("headway-ps", kUsage, words, [&] { serve(parse(words), signals); });
}

}  // namespace headway::hybrid

int main(int argc, char** argv) { return headway::hybrid::run({argv + 1, argv + argc}); }
