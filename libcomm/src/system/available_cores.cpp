// SPDX-License-Identifier: Apache-2.0
#include "system/available_cores.hpp"

#include <algorithm>
#include <fstream>
#include <string>

namespace headway::comm {

cpu_set_t own_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof cores, &cores);
  return cores;
}

// The mask tells which cores, the quota of the control group how much time on them: a container that is given four
// cores by a quota sees all 64 cores of its host in the mask. The file of control groups version 2 holds microseconds
// of core time per period. "400000 100000" on 8 cores gives 4; "250000 100000" gives 2, rounded down. Without the
// file the mask alone counts: with control groups of version 1, or outside any group.
int num_usable(cpu_set_t const& cores) {
  double count = CPU_COUNT(&cores);
  std::ifstream file("/sys/fs/cgroup/cpu.max");  // Contains "QUOTA PERIOD" or "max PERIOD".
  std::string quota;
  double period = 0;
  if (file >> quota >> period && quota != "max" && period > 0) count = std::min(count, std::stod(quota) / period);
  return std::max(1, static_cast<int>(count));
}

}  // namespace headway::comm
