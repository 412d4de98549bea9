#include "rendezvous/host_identity.hpp"

#include <sys/stat.h>

#include <cstdlib>
#include <fstream>

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
  if (declared != nullptr && !identity.empty()) identity += "/" + std::string(declared);
  return identity;
}

}  // namespace headway::comm
