// SPDX-License-Identifier: Apache-2.0

// Device memory that this rank exports to peers on its host, and memory of theirs that it maps, so that a sender can
// copy directly into a receiver's output. exported_memory.hpp explains how segments are numbered and freed.

#include "device/peer_copy/exported_memory.hpp"

#include "headway/comm/status.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace headway::comm::peer_copy {

namespace {

/// Timeout for a descriptor that was sent before the peer announced it, so it is already on its way.
constexpr auto kMessageTime = std::chrono::seconds(10);

}  // namespace

WindowRange ExportedMemory::export_to(int peer, std::span<std::byte const> memory) {
  auto const part = SharedMemory::of_process().find(memory);
  if (part.segment == nullptr) return {};
  auto& exported = exported_[peer];
  auto found = std::ranges::find_if(exported, [&](auto const& each) { return each.lock() == part.segment; });
  if (found == exported.end()) {
    // A segment is exported to a peer once. Its number is its position in this list; the peer counts arrivals alike.
    try {
      if (!ipc_exchange_.add(set_, peer, part.segment->descriptor.get())) return {};
    } catch (SystemError const&) {  // This host lacks resources. Slots work without them.
      return {};
    }
    has_exported_ = true;
    found = exported.insert(found, part.segment);
  }
  return {.segment = static_cast<std::uint64_t>(found - exported.begin()) + 1,
          .segment_bytes = part.segment->memory.num_bytes(),
          .offset = part.offset};
}

CUdeviceptr ExportedMemory::address_of(int peer, WindowRange const& range) {
  auto& segment = segment_of(peer, range.segment);
  if (segment.memory.num_bytes() == 0) {
    segment.memory = DeviceSegment::map(context_, std::move(segment.descriptor), range.segment_bytes);
  }
  return segment.memory.address() + range.offset;
}

ExportedMemory::Mapped& ExportedMemory::segment_of(int peer, std::uint64_t segment) {
  auto& mapped = mapped_[peer];
  while (mapped.size() < segment) {
    mapped.push_back({.descriptor = ipc_exchange_.await_added(set_, peer, Clock::now() + kMessageTime)});
  }
  return mapped[segment - 1];
}

std::uint64_t ExportedMemory::mapped_bytes() const {
  std::uint64_t sum = 0;
  for (auto const& [peer, mapped] : mapped_) {
    for (auto const& each : mapped) sum += each.memory.num_bytes();
  }
  return sum;
}

void ExportedMemory::take_news(std::function<void(int peer, std::string text)> const& send) {
  std::vector<std::pair<int, std::uint64_t>> freed;
  {
    std::lock_guard const lock(freed_mutex_);
    // Swapped out, so that the lock is not held while segments are unmapped: that calls the driver.
    freed.swap(freed_);
  }
  for (auto const& [peer, segment] : freed) segment_of(peer, segment) = {};

  auto const num_freed = SharedMemory::of_process().num_freed();
  if (std::exchange(num_freed_, num_freed) == num_freed) return;
  std::weak_ptr<SharedSegment const> const none;
  for (auto& [peer, exported] : exported_) {
    for (std::size_t i = 0; i < exported.size(); ++i) {
      // An empty weak pointer has no owner: the peer was told already. One that has an owner but is expired belongs to
      // a segment that was freed since.
      bool const is_known = !exported[i].owner_before(none) && !none.owner_before(exported[i]);
      if (is_known || !exported[i].expired()) continue;
      exported[i].reset();
      std::uint64_t const segment = i + 1;
      send(peer, {reinterpret_cast<char const*>(&segment), sizeof segment});
    }
  }
}

void ExportedMemory::on_oob(int peer, std::string_view text) {
  expects(is_for_us(text), "a peer freed memory without saying which");
  std::uint64_t segment = 0;
  std::memcpy(&segment, text.data(), sizeof segment);
  std::lock_guard const lock(freed_mutex_);
  freed_.emplace_back(peer, segment);
}

}  // namespace headway::comm::peer_copy
