#include "rendezvous/process_start.hpp"

#include <unistd.h>

#include <ctime>
#include <fstream>
#include <sstream>
#include <string>

namespace headway::comm {

std::chrono::system_clock::time_point process_start() {
  using std::chrono::system_clock;
  // Field 22 of /proc/self/stat (proc(5)): clock ticks from boot to process start. The second field may contain spaces.
  std::ifstream file("/proc/self/stat");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  long long ticks = 0;
  timespec up{};
  if (!(fields >> ticks) || ::clock_gettime(CLOCK_BOOTTIME, &up) != 0) return {};
  // Both are counted from boot, so their difference is the age of the process.
  double const age_s = static_cast<double>(up.tv_sec) + static_cast<double>(up.tv_nsec) * 1e-9 -
                       static_cast<double>(ticks) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  return system_clock::now() - std::chrono::duration_cast<system_clock::duration>(std::chrono::duration<double>(age_s));
}

}  // namespace headway::comm
