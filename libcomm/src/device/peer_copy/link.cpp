// SPDX-License-Identifier: Apache-2.0

// One side of the memory that two ranks share for device exchanges; link.hpp explains its words and slots.

#include "device/peer_copy/link.hpp"

#include <utility>

namespace headway::comm::peer_copy {

Link::Link(std::shared_ptr<Context const> context, LinkLayout const& layout)
    : context_(std::move(context)), layout_(layout), channels_(layout_.channels.size()) {
  base::FileDescriptor unused;
  host_ = HostSegment::create(context_, RemoteMemory::total_bytes(layout_), unused);
  peer_host_ = HostSegment::create(context_, RemoteMemory::total_bytes(layout_), unused);
  remote_ = {.layout = layout_, .incoming = host_.data(), .outgoing = peer_host_.data()};
  slots_ = host_.address() + layout_.host_bytes;
  peer_slots_ = peer_host_.address() + layout_.host_bytes;
}

Link::Link(std::shared_ptr<Context const> context, LinkLayout const& layout, std::shared_ptr<SharedSegment> segment,
           int rank, int peer)
    : context_(std::move(context)),
      layout_(layout),
      own_offset_(static_cast<std::size_t>(rank) * layout_.source_stride),
      host_(HostSegment::create(context_, layout_.host_bytes, shared_host_)),
      segment_(std::move(segment)),
      slots_(segment_->memory.address() + static_cast<std::size_t>(peer) * layout_.source_stride),
      channels_(layout_.channels.size()) {}

void Link::map_peer(std::array<base::FileDescriptor, 2> descriptors) {
  peer_host_ = HostSegment::map(context_, descriptors[0], layout_.host_bytes);
  peer_device_ = DeviceSegment::map(context_, std::move(descriptors[1]), layout_.device_bytes);
  peer_slots_ = peer_device_.address() + own_offset_;
}

void Link::release_waits() const noexcept {
  peer_sync_words(0).peer_failed.store(1, std::memory_order_release);
  // Once its waits are released, this rank's streams may write data too early. The fence makes peer_failed visible
  // before that.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (std::size_t channel = 0; channel < channels_.size(); ++channel) {
    auto& own = sync_words(static_cast<int>(channel));
    own.arrived.store(kReleased, std::memory_order_relaxed);
    own.consumed.store(kReleased, std::memory_order_relaxed);
  }
}

void Link::release_outputs() const noexcept {
  for (std::size_t channel = 0; channel < channels_.size(); ++channel) {
    sync_words(static_cast<int>(channel)).ready.store(kReleased, std::memory_order_relaxed);
  }
}

}  // namespace headway::comm::peer_copy
