#pragma once

#include <cstddef>
#include <span>

namespace headway::comm {

/// Private, zeroed, page-aligned memory. The kernel allocates each page on its first access.
class LandingMemory {
 public:
  /// @throws SystemError naming the size in bytes.
  explicit LandingMemory(std::size_t num_bytes);
  ~LandingMemory();
  LandingMemory(LandingMemory const&) = delete;
  LandingMemory& operator=(LandingMemory const&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

}  // namespace headway::comm
