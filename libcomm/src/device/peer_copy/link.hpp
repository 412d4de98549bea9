// SPDX-License-Identifier: Apache-2.0

// Peer copies between CUDA devices of one host: stream-ordered exchanges without host synchronisation.
//
// Idea: two ranks share sync words in host memory (control words) and slots in the receiver's device memory, mapped by
// CUDA VMM handles. The sender's copy engine pushes a fragment into a slot of the receiver, then its stream writes
// `arrived`. The receiver's stream waits until `arrived` is large enough (cuStreamBatchMemOp, GEQ), copies the fragment
// out, and writes `consumed`. Hosts enqueue all this and go on; device_enqueue.cpp holds the calls.
//
// Example: 8 slots, fragment 10 of a channel. The sender waits for consumed >= 3, since fragment 2 used the same slot,
// copies into slot 10 mod 8 = 2, and writes arrived = 11. The receiver waits for arrived >= 11, copies slot 2 into its
// output and, once it has passed fragment 11, writes consumed = 12 (kCreditStep = 4).
//
// Invariants:
// - One stream at a time sends or receives on a channel and peer, so fragments arrive in order and one count suffices.
// - Words only grow. A failure sets them to kReleased = 2^62, which lets every cyclic comparison pass.
// - A rank that failed says so in the peer's sync words (`peer_failed`) before it lets its own waits pass. So a result
//   counts only if that word was still zero after the operation.
// - Words live in host memory: a CPU can release them even if all hardware queues of the device are blocked.
// Complexity: per fragment one copy and one word write at each end; the receiver's word is written for every fourth.
// Source: measurements in docs/design/cuda_streams.md. Between hosts a HostProxy plays the peer (host_proxy.hpp).

#pragma once

#include "device/peer_copy/layout.hpp"
#include "device/peer_copy/memory.hpp"

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace headway::comm::peer_copy {

/// One side of the memory that two ranks share: host and device memory for incoming data, and the state of each
/// channel. Fragments of a channel are numbered from 0 in each direction.
///
/// A remote link (to a peer on another host) lies entirely in memory of this host, and a HostProxy plays the peer.
/// Streams use it like a link inside a host, except that its slots are host memory.
class Link {
 public:
  struct Channel {
    std::uint64_t messages_sent = 0, messages_expected = 0;
    std::uint64_t fragments_sent = 0, fragments_received = 0;
    CUstream sender = nullptr,
             receiver = nullptr;  ///< Streams that used the channel last, by direction; null if none has.
  };

  /// Makes a remote link.
  Link(std::shared_ptr<Context const> context, LinkLayout const& layout);
  /// Makes this side of a link inside a host. Its slots lie in `segment`.
  Link(std::shared_ptr<Context const> context, LinkLayout const& layout, std::shared_ptr<SharedSegment> segment,
       int rank, int peer);

  /// Descriptors of this side for the peer: host memory, device memory.
  [[nodiscard]] std::array<int, 2> descriptors() const { return {shared_host_.get(), segment_->descriptor.get()}; }
  /// Maps the peer's side.
  void map_peer(std::array<base::FileDescriptor, 2> descriptors);
  /// True if both ranks use the same device: then every copy is one inside a device.
  bool shares_device = false;
  [[nodiscard]] bool is_remote() const { return segment_ == nullptr; }

  [[nodiscard]] ChannelLayout const& layout(int channel) const { return layout_.of(channel); }
  [[nodiscard]] Channel& channel(int channel) { return channels_[index(channel)]; }
  /// Sync words, stages and slots of this side, for incoming data.
  [[nodiscard]] SyncWords& sync_words(int channel) const { return sync_words_in(host_, channel); }
  [[nodiscard]] CUdeviceptr word(int channel, SyncWord word) const { return word_in(host_, channel, word); }
  [[nodiscard]] CUdeviceptr stage(int channel, std::uint64_t fragment) const {
    return host_.address() + layout(channel).stage_offset(fragment);
  }
  [[nodiscard]] CUdeviceptr slot(int channel, std::uint64_t fragment) const {
    return slots_ + layout(channel).slot_offset(fragment);
  }
  /// Sync words, stages and slots of the peer's side, for outgoing data.
  [[nodiscard]] SyncWords& peer_sync_words(int channel) const { return sync_words_in(peer_host_, channel); }
  [[nodiscard]] CUdeviceptr peer_word(int channel, SyncWord word) const { return word_in(peer_host_, channel, word); }
  [[nodiscard]] CUdeviceptr peer_stage(int channel, std::uint64_t fragment) const {
    return peer_host_.address() + layout(channel).stage_offset(fragment);
  }
  [[nodiscard]] CUdeviceptr peer_slot(int channel, std::uint64_t fragment) const {
    return peer_slots_ + layout(channel).slot_offset(fragment);
  }
  /// All memory of a remote link, as a CPU sees it.
  [[nodiscard]] RemoteMemory const& remote_memory() const { return remote_; }

  /// Releases this rank's waits for the peer, now and later, after it has told the peer so. Thread-safe; calls no
  /// driver function. A write by the peer's stream may still be in flight and overwrite a word, so call it again from
  /// time to time.
  void release_waits() const noexcept;
  /// Same for waits until the peer's outputs are ready. While the peer lives its streams write that word themselves,
  /// and until then the peer may use the outputs for something else.
  void release_outputs() const noexcept;
  /// True if the peer has released its waits. Data from it may then have been overwritten.
  [[nodiscard]] bool peer_has_failed() const { return sync_words(0).peer_failed.load(std::memory_order_acquire) != 0; }

 private:
  static std::size_t index(int channel) { return static_cast<std::size_t>(channel); }
  [[nodiscard]] SyncWords& sync_words_in(HostSegment const& host, int channel) const {
    return *reinterpret_cast<SyncWords*>(host.data() + layout(channel).sync_offset);
  }
  /// Device address of a word.
  [[nodiscard]] CUdeviceptr word_in(HostSegment const& host, int channel, SyncWord word) const {
    auto const* const here = reinterpret_cast<std::byte const*>(&(sync_words_in(host, channel).*word));
    return host.address() + static_cast<std::size_t>(here - host.data());
  }

  std::shared_ptr<Context const> context_;
  LinkLayout layout_;
  std::size_t own_offset_ = 0;  ///< Offset of this rank in the peer's segment, if sources share it.
  base::FileDescriptor shared_host_;
  HostSegment host_, peer_host_;
  std::shared_ptr<SharedSegment> segment_;
  DeviceSegment peer_device_;
  CUdeviceptr slots_ = 0, peer_slots_ = 0;
  RemoteMemory remote_;
  std::vector<Channel> channels_;
};

}  // namespace headway::comm::peer_copy
