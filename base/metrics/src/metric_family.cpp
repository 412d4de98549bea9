// SPDX-License-Identifier: Apache-2.0

#include "headway/base/metrics_server.hpp"

#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <limits>

namespace headway::base {

void add_histogram(MetricFamily& family, std::vector<std::uint64_t> const& counts, std::uint64_t first,
                   bool is_last_open) {
  auto& metric = family.metrics.emplace_back();
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    auto const number = static_cast<double>(first + i);
    total += counts[i];
    metric.value += number * static_cast<double>(counts[i]);
    if (i + 1 < counts.size() || !is_last_open) {
      metric.buckets.push_back({.upper_bound = number, .cumulative_count = total});
    }
  }
  metric.buckets.push_back({.upper_bound = std::numeric_limits<double>::infinity(), .cumulative_count = total});
}

MetricFamily resident_memory() {
  MetricFamily family{.name = "process_resident_memory_bytes", .help = "Resident memory of the process."};
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> const file(std::fopen("/proc/self/statm", "re"), &std::fclose);
  unsigned long all = 0, resident = 0;  // Pages.
  if (file != nullptr && std::fscanf(file.get(), "%lu %lu", &all, &resident) == 2) {
    family.add(static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE)));
  }
  return family;
}

}  // namespace headway::base
