// SPDX-License-Identifier: Apache-2.0

// Checksums of payloads. The checksum needs to be fast and to notice accidental changes, not to resist an attacker.

#include "transport/checked/source_ledger.hpp"

#include <algorithm>
#include <cstring>

namespace headway::comm {
namespace {

// Detects every one-bit change: for a given word, each step is a bijection of the state.
std::uint64_t checksum_of(std::span<std::byte const> bytes) {
  std::uint64_t state = 0x9e3779b97f4a7c15u + bytes.size();
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof word, bytes.size() - at));
    state = (state ^ word) * 0xff51afd7ed558ccdu;
    state ^= state >> 32;
  }
  return state;
}

}  // namespace

void SourceLedger::add(std::span<std::byte const> payload, std::uint64_t seq) {
  if (!payload.empty()) entries_.push_back({payload, seq, checksum_of(payload)});
}

std::optional<std::uint64_t> SourceLedger::settle(std::uint64_t flushed) {
  std::optional<std::uint64_t> changed;
  for (; !entries_.empty() && entries_.front().seq <= flushed; entries_.pop_front()) {
    Entry const& entry = entries_.front();
    if (!changed && checksum_of(entry.payload) != entry.checksum) changed = entry.seq;
  }
  return changed;
}

}  // namespace headway::comm
