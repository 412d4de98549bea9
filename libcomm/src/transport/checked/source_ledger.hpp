// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>

namespace headway::comm {

/// Checksums of the payloads that unflushed puts to one peer still need.
class SourceLedger {
 public:
  /// Records the payload of put `seq` (put_count() after the put). Numbers must rise.
  void add(std::span<std::byte const> payload, std::uint64_t seq);
  /// Removes all puts up to `flushed`. @returns the number of the first one whose payload has changed.
  std::optional<std::uint64_t> settle(std::uint64_t flushed);
  void clear() { entries_.clear(); }

 private:
  struct Entry {
    std::span<std::byte const> payload;
    std::uint64_t seq;
    std::uint64_t checksum;
  };
  std::deque<Entry> entries_;
};

}  // namespace headway::comm
