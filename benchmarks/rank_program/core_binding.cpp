// SPDX-License-Identifier: Apache-2.0

// Assigns cores to ranks. Two hardware threads of one core share its units, so ranks get a core each as long as there
// are enough.
//
// Example: CPUs 0 and 2 are hardware threads of one core, 1 and 3 of another. The order is 0, 1, 2, 3: the first
// threads of both cores, then the second ones. If 0 and 1 shared a core, it would be 0, 2, 1, 3. With five ranks the
// last one shares CPU 0 with the first.

#include "rank_program.hpp"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <fstream>
#include <map>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace headway::benchmarks {

namespace {

/// Text shared by the hardware threads of a core, such as "0,16". Without it in the kernel, each CPU counts as a core.
std::string siblings_of(int cpu) {
  std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
  std::string text;
  return std::getline(file, text) ? text : std::to_string(cpu);
}

/// CPUs that this process may use: the first hardware thread of each core precedes any second one.
std::vector<int> cores_in_order() {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
    throw std::system_error(errno, std::generic_category(), "sched_getaffinity");
  }
  std::vector<std::pair<int, int>> ordered;  // (hardware threads of the same core before this one, CPU)
  std::map<std::string, int> seen;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<std::size_t>(cpu), &allowed)) ordered.emplace_back(seen[siblings_of(cpu)]++, cpu);
  }
  std::sort(ordered.begin(), ordered.end());
  std::vector<int> cpus;
  for (auto const& [threads_before, cpu] : ordered) cpus.push_back(cpu);
  return cpus;
}

}  // namespace

void bind_to_core(int rank) {
  auto const cpus = cores_in_order();
  cpu_set_t chosen;
  CPU_ZERO(&chosen);
  CPU_SET(static_cast<std::size_t>(cpus[static_cast<std::size_t>(rank) % cpus.size()]), &chosen);
  if (::sched_setaffinity(0, sizeof chosen, &chosen) != 0) {
    throw std::system_error(errno, std::generic_category(), "sched_setaffinity");
  }
}

}  // namespace headway::benchmarks
