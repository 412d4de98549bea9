// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/comm/status.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <span>
#include <string>

namespace headway::comm {

/// Private, zeroed, page-aligned memory. The kernel allocates each page on its first access.
class AnonymousMapping {
 public:
  /// @throws SystemError naming the size in bytes.
  explicit AnonymousMapping(std::size_t num_bytes);
  ~AnonymousMapping();
  AnonymousMapping(AnonymousMapping const&) = delete;
  AnonymousMapping& operator=(AnonymousMapping const&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

inline AnonymousMapping::AnonymousMapping(std::size_t num_bytes) {
  if (num_bytes == 0) return;
  // MAP_NORESERVE: a large buffer is often touched in part only, so the kernel need not set memory aside for all of it.
  void* const address =
      ::mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    throw SystemError("mmap", errno, "memory of " + std::to_string(num_bytes) + " bytes");
  }
  bytes_ = {static_cast<std::byte*>(address), num_bytes};
}

inline AnonymousMapping::~AnonymousMapping() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

}  // namespace headway::comm
