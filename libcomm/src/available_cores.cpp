#include "available_cores.hpp"

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

int num_usable(cpu_set_t const& cores) {
  double count = CPU_COUNT(&cores);
  std::ifstream file("/sys/fs/cgroup/cpu.max");  // Contains "QUOTA PERIOD" or "max PERIOD".
  std::string quota;
  double period = 0;
  if (file >> quota >> period && quota != "max" && period > 0) count = std::min(count, std::stod(quota) / period);
  return std::max(1, static_cast<int>(count));
}

}  // namespace headway::comm
