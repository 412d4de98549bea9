#include "engines/nvlink/link.hpp"

#include <utility>

namespace headway::comm::nvlink {

namespace {

constexpr std::size_t kPageBytes = 4096;

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

void LinkLayout::add_channel(std::size_t slot_bytes, std::uint64_t num_slots) {
  channels.push_back({.slot_bytes = slot_bytes,
                      .num_slots = num_slots,
                      .board_offset = host_bytes,
                      .slots_offset = device_bytes,
                      .slot_stride = slot_bytes});
  host_bytes = round_up(host_bytes + sizeof(Board) + num_slots * kStageBytes, kPageBytes);
  device_bytes += num_slots * slot_bytes;
}

LinkLayout LinkLayout::of_shared_slots(std::size_t block_bytes, std::uint64_t num_slots, int size) {
  LinkLayout layout;
  layout.source_stride = block_bytes;
  layout.host_bytes = round_up(sizeof(Board), kPageBytes);
  layout.channels.push_back(
      {.slot_bytes = block_bytes, .num_slots = num_slots, .slot_stride = block_bytes * static_cast<std::size_t>(size)});
  layout.device_bytes = num_slots * layout.channels.front().slot_stride;
  return layout;
}

Link::Link(std::shared_ptr<Context const> context, LinkLayout const& layout, std::shared_ptr<SharedSegment> segment,
           int rank, int peer)
    : context_(std::move(context)),
      layout_(layout),
      own_offset_(static_cast<std::size_t>(rank) * layout_.source_stride),
      peer_offset_(static_cast<std::size_t>(peer) * layout_.source_stride),
      host_(HostSegment::create(context_, layout_.host_bytes, shared_host_)),
      segment_(std::move(segment)),
      channels_(layout_.channels.size()) {}

void Link::map_peer(std::array<FileDescriptor, 2> descriptors) {
  peer_host_ = HostSegment::map(context_, descriptors[0], layout_.host_bytes);
  peer_device_ = DeviceSegment::map(context_, std::move(descriptors[1]), layout_.device_bytes);
}

void Link::release_waits() const noexcept {
  peer_board(0).peer_failed.store(1, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (std::size_t channel = 0; channel < channels_.size(); ++channel) {
    board(static_cast<int>(channel)).arrived.store(kReleased, std::memory_order_relaxed);
    board(static_cast<int>(channel)).consumed.store(kReleased, std::memory_order_relaxed);
  }
}

}  // namespace headway::comm::nvlink
