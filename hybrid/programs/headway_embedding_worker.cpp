// SPDX-License-Identifier: Apache-2.0

// An embedding worker of hybrid training: takes ids from loaders, looks them up at the parameter servers, and gives
// embeddings to dense workers. It loads no torch.

#include "end_signals.hpp"
#include "headway/base/metrics_server.hpp"
#include "headway/base/program_options.hpp"
#include "headway/base/status.hpp"
#include "headway/comm/endpoint.hpp"
#include "headway/comm/group_environment.hpp"
#include "headway/comm/link.hpp"
#include "headway/hybrid/embedding_worker.hpp"
#include "headway/hybrid/request_service.hpp"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace headway::hybrid {

namespace {

constexpr char const* kUsage = R"(usage: headway-embedding-worker --servers HOST:PORT,... [option...]
  --servers LIST        addresses of all parameter servers, in the order that all roles have
  --address HOST:PORT   where this worker listens (default: 0.0.0.0:7100)
  --job NAME            of the job; peers of another one are refused (default: hybrid)
  --threads N           that remove duplicates and add gradients (default: 1)
  --timeout MS          time limit of each wait for a server (default: 120000)
  --connect-timeout MS  time limit of the wait until a server listens (default: 60000)
  --max-request-mib N   largest request in MiB (default: 256)
  --buffer-mib N        ids of batches that nobody has fetched yet; loaders wait beyond it (default: 1024)
  --metrics HOST:PORT   where Prometheus finds the counters of this worker (default: nowhere)
  --leave-timeout MS    longest time that SIGTERM leaves for the batches that are here (default: 20000)
The secret of the job is in HEADWAY_GROUP_SECRET, or in the file HEADWAY_GROUP_SECRET_FILE.
The first trainer tells tables and features. After SIGTERM the worker takes no batches of loaders, and ends once it has
none left, or nobody is connected. SIGINT, or a second SIGTERM, ends it at once.
)";

struct Arguments {
  std::vector<std::string> servers;
  int threads = 1;
  std::chrono::milliseconds timeout{120'000}, connect_timeout{60'000}, leave_timeout{20'000};
  std::size_t max_request_mib = 256, buffer_mib = 1024;
  std::string metrics;
  RequestServiceOptions service{.address = "0.0.0.0:7100"};
};

std::vector<std::string> split(std::string const& list) {
  std::vector<std::string> parts;
  for (std::size_t first = 0; first <= list.size();) {
    auto const end = std::min(list.find(',', first), list.size());
    if (end > first) parts.push_back(list.substr(first, end - first));
    first = end + 1;
  }
  return parts;
}

Arguments parse(std::vector<std::string> const& words) {
  Arguments arguments;
  arguments.service.link.name = "hybrid";
  base::ProgramOptions options;
  options.add("--servers", [&](std::string const& value) { arguments.servers = split(value); });
  options.add_text("--address", arguments.service.address);
  options.add_text("--job", arguments.service.link.name);
  options.add_number("--threads", arguments.threads, 1);
  options.add_duration("--timeout", arguments.timeout, 1);
  options.add_duration("--connect-timeout", arguments.connect_timeout, 1);
  options.add_duration("--leave-timeout", arguments.leave_timeout, 0);
  options.add_number("--max-request-mib", arguments.max_request_mib, 1);
  options.add_number("--buffer-mib", arguments.buffer_mib, 1);
  options.add_text("--metrics", arguments.metrics);
  options.parse(words);
  base::expects(!arguments.servers.empty(), "--servers is missing");
  arguments.service.max_body_bytes = arguments.max_request_mib << 20;
  comm::read_group_environment(arguments.service.link);
  base::expects(!arguments.service.link.secret.empty(),
                "a worker needs the secret of the job, in HEADWAY_GROUP_SECRET or HEADWAY_GROUP_SECRET_FILE");
  return arguments;
}

std::vector<ServerEnd> connect(Arguments const& arguments) {
  auto options = request_link_options(arguments.service.link);
  options.connect_timeout = arguments.connect_timeout;
  std::vector<ServerEnd> ends;
  for (auto const& address : arguments.servers) {
    ends.push_back({.name = "parameter server " + std::to_string(ends.size()) + " at " + address,
                    .client = std::make_unique<ServerClient>(comm::dial(address, options), arguments.timeout)});
  }
  return ends;
}

/// Waits until a worker that leaves has no batch left. It must have had none for some time, since a void notice for a
/// step without a batch may be on its way, or an answer.
/// @throws base::OperationError if batches are left at the time limit
void leave(EmbeddingWorker& worker, RequestService const& service, std::chrono::milliseconds limit,
           sigset_t const& signals) {
  constexpr std::chrono::milliseconds kWithoutBatches(1000);
  constexpr timespec kTick{.tv_sec = 0, .tv_nsec = 50'000'000};
  using Clock = std::chrono::steady_clock;
  worker.leave();
  auto const until = Clock::now() + limit;
  auto idle_since = Clock::now();
  while (service.num_links() > 0) {
    if (sigtimedwait(&signals, nullptr, &kTick) > 0) return;
    auto const now = Clock::now();
    auto const num_batches = worker.num_batches();
    if (num_batches > 0) idle_since = now;
    if (now - idle_since >= kWithoutBatches) return;
    if (now >= until) {
      throw base::OperationError(
          {base::StatusCode::kTimeout,
           std::to_string(num_batches) + " batches are left after --leave-timeout " + std::to_string(limit.count())});
    }
  }
}

void serve(Arguments const& arguments, sigset_t const& signals) {
  EmbeddingWorker worker({.connect = [&] { return connect(arguments); },
                          .timeout = arguments.timeout,
                          .max_buffer_bytes = arguments.buffer_mib << 20,
                          .max_batch_bytes = arguments.max_request_mib << 20,
                          .thread_pool = std::make_shared<base::ThreadPool>(arguments.threads)});
  RequestService const service(arguments.service, [&](Request& request) { worker.handle(request); });
  std::optional<base::MetricsServer> metrics;
  if (!arguments.metrics.empty()) {
    metrics.emplace(arguments.metrics,
                    [&] { return metrics_of(worker.status(), service.traffic(), service.num_links()); });
  }
  std::printf("listening at %s\n", service.address().c_str());
  std::fflush(stdout);
  if (await_end(signals) == SIGTERM) leave(worker, service, arguments.leave_timeout, signals);
}

}  // namespace

int run(std::vector<std::string> const& words) {
  auto const signals = block_end_signals();
  return base::run_program("headway-embedding-worker", kUsage, words, [&] { serve(parse(words), signals); });
}

}  // namespace headway::hybrid

int main(int argc, char** argv) { return headway::hybrid::run({argv + 1, argv + argc}); }
