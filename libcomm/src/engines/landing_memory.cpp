#include "engines/landing_memory.hpp"

#include "headway/comm/status.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <string>

namespace headway::comm {

LandingMemory::LandingMemory(std::size_t num_bytes) {
  if (num_bytes == 0) return;
  void* const address =
      ::mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    throw SystemError("mmap", errno, "landing memory of " + std::to_string(num_bytes) + " bytes");
  }
  bytes_ = {static_cast<std::byte*>(address), num_bytes};
}

LandingMemory::~LandingMemory() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

}  // namespace headway::comm
