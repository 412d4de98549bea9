#pragma once

#include <cstddef>
#include <span>

namespace headway::comm {

/// Private zeroed memory, page-aligned; pages are there when first touched.
class LandingMemory {
 public:
  /// @throws SystemError naming the size.
  explicit LandingMemory(std::size_t num_bytes);
  ~LandingMemory();
  LandingMemory(LandingMemory const&) = delete;
  LandingMemory& operator=(LandingMemory const&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

}  // namespace headway::comm
