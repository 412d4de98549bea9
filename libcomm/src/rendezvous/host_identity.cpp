#include "rendezvous/host_identity.hpp"

#include <sys/stat.h>

#include <cstdlib>
#include <fstream>

namespace headway::comm {

std::string host_identity() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  struct stat net_namespace {};
  if (boot_id.empty() || ::stat("/proc/self/ns/net", &net_namespace) != 0) return {};
  std::string identity = boot_id + "/" + std::to_string(net_namespace.st_ino);
  if (char const* const declared = std::getenv("HEADWAY_HOST_ID")) identity += "/" + std::string(declared);
  return identity;
}

}  // namespace headway::comm
