#include "available_cores.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace headway::comm {

int available_cores() {
  auto cores = static_cast<double>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  std::ifstream file("/sys/fs/cgroup/cpu.max");  // "quota period", or "max period".
  std::string quota;
  double period = 0;
  if (file >> quota >> period && quota != "max" && period > 0) cores = std::min(cores, std::stod(quota) / period);
  return std::max(1, static_cast<int>(cores));
}

}  // namespace headway::comm
