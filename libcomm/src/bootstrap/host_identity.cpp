// SPDX-License-Identifier: Apache-2.0

// Identity of hosts: two ranks may share memory if their kernel's boot id and network namespace are equal. Containers
// of one host with networks of their own count as different hosts, since they cannot reach each other's local
// sockets.

#include "bootstrap/host_identity.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <sstream>
#include <string>

namespace headway::comm {

std::string physical_host_identity() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  struct stat net_namespace {};
  if (boot_id.empty() || ::stat("/proc/self/ns/net", &net_namespace) != 0) return {};
  return boot_id + "/" + std::to_string(net_namespace.st_ino);
}

std::string host_identity() {
  std::string identity = physical_host_identity();
  char const* const declared = std::getenv("HEADWAY_HOST_ID");
  // Tests and users split one host into several by this variable; it cannot join two hosts.
  if (declared != nullptr && !identity.empty()) identity += "/" + std::string(declared);
  return identity;
}

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
