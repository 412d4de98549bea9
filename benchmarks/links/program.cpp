// SPDX-License-Identifier: Apache-2.0

// Measures what many links cost a process: memory, descriptors, threads, the time to join, and processor time while
// they are idle. A second process dials the first one as often as there are links, and each link carries a message both
// ways before anything is measured.

#include "forked_ranks.hpp"
#include "json_object.hpp"
#include "options.hpp"
#include "rank_program.hpp"

#include <headway/comm/link.hpp>
#include <headway/comm/store.hpp>

#include <sys/resource.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace headway::benchmarks {

namespace {

using std::chrono::duration;
using std::chrono::seconds;
using std::chrono::steady_clock;

struct Settings : RankSettings {
  int links = 256;
  comm::Transport transport = comm::Transport::kTcp;
  std::size_t slot_bytes = 4096;
  int seconds = 10;
};

std::string usage(std::string const& program) {
  return "Measures what links cost the process that listens, and prints one JSON line.\n\n"
         "usage: " +
         program +
         " [options]\n"
         "  --links N         links to one other process (256)\n"
         "  --transport T     tcp (default) or shm\n"
         "  --slot-bytes B    of each link (4096)\n"
         "  --seconds S       idle time over which processor time is counted (10)\n"
         "  --time-limit S    end after this time (300)\n";
}

/// Resources that the process uses.
struct Usage {
  double memory_kib = 0;  ///< Resident, shared memory included.
  long descriptors = 0;
  long threads = 0;
  double cpu_s = 0;

  static Usage now() {
    Usage found;
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("VmRSS:")) found.memory_kib = std::stod(line.substr(6));
    }
    auto const entries = [](char const* folder) {
      return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
    };
    found.descriptors = entries("/proc/self/fd");
    found.threads = entries("/proc/self/task");
    rusage used{};
    ::getrusage(RUSAGE_SELF, &used);
    auto const of = [](timeval const& time) {
      return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    };
    found.cpu_s = of(used.ru_utime) + of(used.ru_stime);
    return found;
  }
};

comm::GroupOptions options_of(Settings const& settings) {
  comm::GroupOptions options;
  options.transport = settings.transport;
  options.slot_bytes = settings.slot_bytes;
  options.name = "bench";
  options.secret = "secret of the benchmark";
  options.connect_timeout = seconds(30);
  options.timeout = seconds(30);
  return options;
}

using Links = std::vector<std::unique_ptr<comm::Group>>;

/// Sends a message over each link and receives one. Links may be accepted in another order than they were dialled, so
/// none waits before all have begun. @throws std::runtime_error
void exchange_over_all(Links const& links) {
  using Message = std::array<std::byte, 64>;
  Message const out{};
  std::vector<Message> in(links.size());
  std::vector<std::pair<comm::Group*, comm::OperationPtr>> pending;
  for (std::size_t i = 0; i < links.size(); ++i) {
    auto& link = *links[i];
    pending.emplace_back(&link, link.receive(in[i], 1 - link.rank(), 0, 0));
    pending.emplace_back(&link, link.send(out, 1 - link.rank(), 0, 0));
  }
  for (auto const& [link, operation] : pending) {
    if (auto const status = link->wait(*operation); !status.ok()) {
      throw std::runtime_error(std::string(status.message()));
    }
  }
}

void listen(Settings const& settings, comm::Store& store, RankBarrier& barrier) {
  comm::LinkListener listener("127.0.0.1:0", options_of(settings));
  auto const before = Usage::now();
  store.set("address", listener.address());
  auto const begin = steady_clock::now();
  Links links;
  while (static_cast<int>(links.size()) < settings.links) {
    auto link = listener.accept(seconds(30));
    if (!link) throw std::runtime_error("no peer dialled within 30 s");
    links.push_back(std::move(link));
  }
  double const join_s = duration<double>(steady_clock::now() - begin).count();
  exchange_over_all(links);
  auto const after = Usage::now();
  std::this_thread::sleep_for(seconds(1));
  auto const idle = Usage::now();
  std::this_thread::sleep_for(seconds(settings.seconds));
  double const idle_s = Usage::now().cpu_s - idle.cpu_s;
  barrier.wait();

  JsonObject point, params;
  params.add("links", settings.links).add("slot_bytes", settings.slot_bytes);
  params.add("transport", settings.transport == comm::Transport::kTcp ? "tcp" : "shm");
  point.add("name", "links").add("params", params).add("system", "headway").add("samples", 1);
  point.add("median_s", join_s / settings.links).add("unit", "s to join");
  point.add("kib_per_link", (after.memory_kib - before.memory_kib) / settings.links);
  point.add("descriptors_per_link", static_cast<double>(after.descriptors - before.descriptors) / settings.links);
  point.add("more_threads", after.threads - before.threads);
  point.add("idle_percent_of_core", 100 * idle_s / settings.seconds);
  print_point(point);
}

void dial_all(Settings const& settings, comm::Store& store, RankBarrier& barrier) {
  auto const address = store.get("address", seconds(30));
  Links links;
  for (int i = 0; i < settings.links; ++i) links.push_back(comm::dial(address, options_of(settings)));
  exchange_over_all(links);
  barrier.wait();
}

int run(Arguments arguments) {
  Settings settings;
  parse_options(
      arguments,
      {{"--links", number(settings.links, 1, 10'000)},
       {"--transport", choice(settings.transport, {{"tcp", comm::Transport::kTcp}, {"shm", comm::Transport::kShm}})},
       {"--slot-bytes", number(settings.slot_bytes, std::size_t{64}, std::size_t{1} << 26)},
       {"--seconds", number(settings.seconds, 1, 3600)},
       {"--time-limit", number(settings.time_limit, 1, 86'400)}});
  TemporaryDirectory const folder;
  return run_forked_ranks(2, [&](int rank) {
    return run_rank(settings, {.rank = rank, .ranks = 2}, folder.path(), [&](RankBarrier& barrier) {
      comm::FileStore store(folder.path() / "store");
      rank == 0 ? listen(settings, store, barrier) : dial_all(settings, store, barrier);
    });
  });
}

}  // namespace

}  // namespace headway::benchmarks

int main(int argc, char** argv) {
  return headway::benchmarks::run_main(argc, argv, headway::benchmarks::usage, headway::benchmarks::run);
}
