#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>

namespace headway::comm {

/// Checksums of the payloads that one peer's puts still need.
class SourceLedger {
 public:
  /// Notes the payload of put `number` (put_count() after it). Numbers rise.
  void add(std::span<std::byte const> payload, std::uint64_t number);
  /// Drops all puts up to `flushed`. @returns the first of them whose payload is not what it was.
  std::optional<std::uint64_t> settle(std::uint64_t flushed);
  void clear() { entries_.clear(); }

 private:
  struct Entry {
    std::span<std::byte const> payload;
    std::uint64_t number;
    std::uint64_t checksum;
  };
  std::deque<Entry> entries_;
};

}  // namespace headway::comm
