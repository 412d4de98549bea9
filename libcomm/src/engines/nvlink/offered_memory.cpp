#include "engines/nvlink/offered_memory.hpp"

#include "headway/comm/status.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace headway::comm::nvlink {

namespace {

/// Timeout for a descriptor that was sent before the peer announced it, so it is already on its way.
constexpr auto kLetterTime = std::chrono::seconds(10);

}  // namespace

MemoryPlace OfferedMemory::offer(int peer, std::span<std::byte const> memory) {
  auto const part = SharedMemory::of_process().find(memory);
  if (part.segment == nullptr) return {};
  auto& offered = offered_[peer];
  auto found = std::ranges::find_if(offered, [&](auto const& each) { return each.lock() == part.segment; });
  if (found == offered.end()) {
    try {
      if (!introductions_.add(set_, peer, part.segment->descriptor.get())) return {};
    } catch (SystemError const&) {  // This host lacks resources. Slots work without them.
      return {};
    }
    has_offered_ = true;
    found = offered.insert(found, part.segment);
  }
  return {.segment = static_cast<std::uint64_t>(found - offered.begin()) + 1,
          .segment_bytes = part.segment->memory.num_bytes(),
          .offset = part.offset};
}

CUdeviceptr OfferedMemory::address_of(int peer, MemoryPlace const& place) {
  auto& segment = segment_of(peer, place.segment);
  if (segment.memory.num_bytes() == 0) {
    segment.memory = DeviceSegment::map(context_, std::move(segment.descriptor), place.segment_bytes);
  }
  return segment.memory.address() + place.offset;
}

OfferedMemory::Mapped& OfferedMemory::segment_of(int peer, std::uint64_t segment) {
  auto& mapped = mapped_[peer];
  while (mapped.size() < segment) {
    mapped.push_back({.descriptor = introductions_.await_added(set_, peer, Clock::now() + kLetterTime)});
  }
  return mapped[segment - 1];
}

std::uint64_t OfferedMemory::mapped_bytes() const {
  std::uint64_t sum = 0;
  for (auto const& [peer, mapped] : mapped_) {
    for (auto const& each : mapped) sum += each.memory.num_bytes();
  }
  return sum;
}

void OfferedMemory::take_news(std::function<void(int peer, std::string text)> const& tell) {
  std::vector<std::pair<int, std::uint64_t>> freed;
  {
    std::lock_guard const lock(freed_mutex_);
    freed.swap(freed_);
  }
  for (auto const& [peer, segment] : freed) segment_of(peer, segment) = {};

  auto const num_freed = SharedMemory::of_process().num_freed();
  if (std::exchange(num_freed_, num_freed) == num_freed) return;
  std::weak_ptr<SharedSegment const> const none;
  for (auto& [peer, offered] : offered_) {
    for (std::size_t i = 0; i < offered.size(); ++i) {
      bool const is_known = !offered[i].owner_before(none) && !none.owner_before(offered[i]);
      if (is_known || !offered[i].expired()) continue;
      offered[i].reset();
      std::uint64_t const segment = i + 1;
      tell(peer, {reinterpret_cast<char const*>(&segment), sizeof segment});
    }
  }
}

void OfferedMemory::heard(int peer, std::string_view text) {
  expects(is_for_us(text), "a peer freed memory without saying which");
  std::uint64_t segment = 0;
  std::memcpy(&segment, text.data(), sizeof segment);
  std::lock_guard const lock(freed_mutex_);
  freed_.emplace_back(peer, segment);
}

}  // namespace headway::comm::nvlink
